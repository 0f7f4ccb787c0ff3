"""`ullage serve`: the engine's own server, with ullage switched on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

from ullage.errors import UnknownModel, Usage
from ullage.vllm_plugin import settings

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
    from ullage.compare.engine import check_plugin, engine_command

    arguments = context.args
    if not arguments:
        raise Usage("There is no model to serve. Name a directory or a hub's name.")
    check_model(arguments[0])
    command = engine_command(["serve", *arguments])
    check_plugin(os.environ)
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
        if not _has_configuration(path):
            raise UnknownModel(
                f"The directory '{model}' has no config.json. Name the directory of a model."
            )
    elif not path.exists() and (path.is_absolute() or model.startswith(("./", "../", "~"))):
        raise UnknownModel(f"'{model}' does not exist. Name a model's directory or a hub's name.")


def _has_configuration(path: Path) -> bool:
    try:
        return any((path / name).is_file() for name in CONFIGURATIONS)
    except OSError as error:
        raise UnknownModel(
            f"The directory '{path}' cannot be read: {error.strerror}. "
            "Make the model readable for this user."
        ) from error


def switched_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment.  Raises Usage for a switch whose value is none.

    A front end that another engine left in ours is not this engine's.
    """
    kept = {name: value for name, value in environment.items() if name != settings.FRONTEND}
    switched = {**kept, "ULLAGE": "1"}
    settings.read(switched)
    return switched

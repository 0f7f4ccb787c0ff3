"""`ullage serve`: the engine's own server, with ullage switched on."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ullage.errors import DoesNotFit, UnknownModel, Unreadable, Usage
from ullage.units import gib, gib_at_least
from ullage.vllm_plugin import settings

if TYPE_CHECKING:
    from ullage.accounting.ceiling import Ceiling

# Everything behind `serve` is the engine's, in its order; only a `--help` that comes first is ours.
PASS_THROUGH: Final = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}
USAGE: Final = "[--explain] MODEL [VLLM SERVE ARGUMENTS]..."
CONFIGURATIONS: Final = ("config.json", "params.json")  # Hugging Face's, Mistral's


def serve(
    context: typer.Context,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Before MODEL: print the ledger and where the time went to stderr, once the KV "
            "cache has its memory.",
        ),
    ] = False,
) -> None:
    """Serve a model as `vllm serve` does, with ullage on.

    You pass what you pass to `vllm serve`; nothing is changed on the way. ULLAGE=1 is set, whatever
    it was. A local model whose weights cannot fit is refused at once. To see the engine's own
    options, run `ullage serve MODEL --help=all`.
    """
    from ullage.compare.engine import check_plugin, engine_command

    arguments = context.args
    if not arguments:
        raise Usage("There is no model to serve. Name a directory or a hub's name.")
    check_model(arguments[0])
    command = engine_command(["serve", *arguments])
    check_plugin(os.environ)
    environment = switched_on(os.environ, explain=explain)
    refuse_if_too_large(arguments, environment)
    sys.stdout.flush()
    sys.stderr.flush()
    # In our place, not as a child: signals, exit code and process id are the server's own.
    os.execve(command[0], command, environment)  # noqa: S606


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


def refuse_if_too_large(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises DoesNotFit where the weights alone exceed what could ever be taken, in any type.

    The worker looks again, with the engine's types and the KV cache; this spares half a minute.
    """
    from ullage.accounting.ceiling import ceiling
    from ullage.checkpoint.least import least_bytes, may_load_other_weights
    from ullage.devices import host
    from ullage.vllm_plugin.recorder import Recorder

    least = None if may_load_other_weights(arguments) else least_bytes(Path(arguments[0]))
    if least is None:
        return
    with contextlib.suppress(Unreadable):  # the worker says so, or leaves the start to stock
        most = ceiling(host.read())
        if most is not None and least > most.available_bytes:
            recorder = Recorder(model=arguments[0], settings=settings.read(environment), warn=tell)
            with recorder.refusals():
                raise DoesNotFit(too_large(arguments[0], least, most))


def too_large(model: str, least: int, most: Ceiling) -> str:
    from ullage.compare.checkpoint import ENGINE_BYTES

    enough = most.total_bytes - most.available_bytes + least + ENGINE_BYTES
    return (
        f"The weights of '{model}' take at least {gib(least)}, and at most "
        f"{gib(most.available_bytes)} of {gib(most.total_bytes)} ({most.source}) can be taken. "
        f"Raise the memory limit to {gib_at_least(enough)}, with {gib(ENGINE_BYTES)} for the "
        "engine's processes."
    )


def tell(warning: str) -> None:
    print(f"ullage: {warning}", file=sys.stderr)


def switched_on(environment: Mapping[str, str], *, explain: bool = False) -> dict[str, str]:
    """The engine's environment.  Raises Usage for a switch whose value is none.

    A front end that another engine left in ours is not this engine's.
    """
    kept = {name: value for name, value in environment.items() if name != settings.FRONTEND}
    switched = {**kept, "ULLAGE": "1", **({"ULLAGE_EXPLAIN": "1"} if explain else {})}
    settings.read(switched)
    return switched

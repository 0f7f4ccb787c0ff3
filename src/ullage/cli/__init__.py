"""The commands; an expected fault becomes one sentence on stderr and its exit code.

A command's module holds its arguments and imports what does the work inside the function, so that
`ullage --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final, NoReturn

import typer

import ullage
from ullage.cli.compare import compare
from ullage.cli.demo import demo
from ullage.cli.devices import devices
from ullage.cli.leases import leases
from ullage.cli.receipts import receipts
from ullage.cli.serve import PASS_THROUGH, USAGE, serve
from ullage.errors import FULL, UllageError, Unreadable

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count

app: Final = typer.Typer(
    name="ullage",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ullage {ullage.__version__}")
        raise typer.Exit


@app.callback()
def ullage_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """See how much memory an LLM engine can still take, and let vLLM use it.

    Results go to stdout, progress and logs to stderr. A size needs a unit, such as 4GiB.

    Exit codes: 0 fits or ok, 1 does not fit, 2 usage or an unknown model, 3 a device or file cannot
    be read or a limit not be enforced, 4 the engine failed.
    """


app.command()(devices)
app.command()(leases)
app.command(context_settings=PASS_THROUGH, options_metavar=USAGE)(serve)
app.command()(receipts)
app.command()(compare)
app.command()(demo)


def main() -> NoReturn:
    """Runs the command line.  Ends with the exit code of the error, where there is one."""
    try:
        app()
    except UllageError as error:
        print(f"ullage: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = f"'{error.filename}'" if error.filename else "the output"
        print(f"ullage: There is no room for {where}. Free some disk space.", file=sys.stderr)
        sys.exit(Unreadable.exit_code)
    except KeyboardInterrupt:
        exit_interrupted()
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer makes this of a KeyboardInterrupt in a command
            exit_interrupted()
        raise
    sys.exit(0)


def exit_interrupted() -> NoReturn:
    print("ullage: Interrupted. Nothing of it is left running.", file=sys.stderr)
    sys.exit(INTERRUPTED)

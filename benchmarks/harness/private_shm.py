"""Run a program that finds its own folder at /dev/shm, so that what it leaves there is its own.

    python private_shm.py FOLDER PROGRAM [ARGUMENT ...]

For a program that is in a mount namespace of its own already, as `ullage.compare.enter` makes one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ullage.drivers import namespaces

SHM = "/dev/shm"  # noqa: S108 - folders of our own are made in it


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder in /dev/shm, gone with all that is in it when its block ends."""
    return tempfile.TemporaryDirectory(prefix="ullage-", dir=SHM, ignore_cleanup_errors=True)


def command(folder: str, program: Sequence[str]) -> list[str]:
    """The argument list that runs `program` so."""
    return [sys.executable, "-P", str(Path(__file__)), folder, *program]


def main() -> None:
    folder, *program = sys.argv[1:]
    namespaces.bind(folder, SHM)
    os.execvp(program[0], program)  # noqa: S606 - an argument list, never a shell


if __name__ == "__main__":
    main()

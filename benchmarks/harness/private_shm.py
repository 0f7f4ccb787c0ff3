"""Run a program that finds its own folder at /dev/shm, so that what it leaves there is its own.

    python private_shm.py FOLDER PROGRAM [ARGUMENT ...]

For a program that is in a mount namespace of its own already, as `ullage.compare.enter` makes one.
"""

from __future__ import annotations

import os
import sys

from ullage.drivers import namespaces


def main() -> None:
    folder, *program = sys.argv[1:]
    namespaces.bind(folder, "/dev/shm")  # noqa: S108 - the folder's own copy of it
    os.execvp(program[0], program)  # noqa: S606 - an argument list, never a shell


if __name__ == "__main__":
    main()

"""Every error that ullage raises on purpose, as a tree, each with its exit code.

    UllageError
    +-- DoesNotFit            1  the numbers are known, and they are too small
    +-- Usage                 2  an argument, a size, a model that is not one
    |   +-- UnknownModel      2  a directory or configuration that is not understood
    +-- Unreadable            3  a device, file or limit cannot be read or enforced
    |   +-- NotEnforced       3  a memory limit that this machine does not let us set
    +-- EngineFailed          4  the engine did not start, or died
    |   +-- Unsupported       4  an engine version or option that the plugin does not handle
    +-- MemoryRefused         1  virtual memory: a step was refused, and all is as it was before
        +-- OverAvailable     1  refused by us, before the kernel would have killed the process

A message states the fact with its numbers, then the next step: two sentences.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Final

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""No room on a disk: not of our making, whichever file it was."""


class UllageError(Exception):
    """Base of the tree.  `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 4


class DoesNotFit(UllageError):
    exit_code = 1


class Usage(UllageError):
    exit_code = 2


class UnknownModel(Usage):
    pass


class Unreadable(UllageError):
    exit_code = 3


class NotEnforced(Unreadable):
    pass


class EngineFailed(UllageError):
    exit_code = 4


class Unsupported(EngineFailed):
    pass


class MemoryRefused(UllageError):
    exit_code = 1


class OverAvailable(MemoryRefused):
    pass

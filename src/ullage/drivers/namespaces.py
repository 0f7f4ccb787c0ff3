"""Namespaces and mounts of the calling process, by ctypes: Python 3.11 has neither call."""

from __future__ import annotations

import ctypes
import os
from typing import Final

# include/uapi/linux/sched.h and include/uapi/linux/mount.h, the same on every architecture.
CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWCGROUP: Final = 0x0200_0000
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x4_0000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.unshare.argtypes = [ctypes.c_int]
_libc.mount.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
]


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` for new ones.  Raises OSError, mostly PermissionError."""
    _checked(_libc.unshare(flags), "unshare")


def make_mounts_private() -> None:
    """Mounts made from here on stay in this mount namespace.  Raises OSError."""
    _checked(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount --make-rprivate")


def bind(source: str, target: str) -> None:
    """Show directory `source` at `target` as well.  Raises OSError."""
    result = _libc.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND, None)
    _checked(result, f"mount --bind {source} {target}")


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")

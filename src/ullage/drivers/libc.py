"""The C library's memory calls, by ctypes: Python's `mmap` cannot reserve without committing.

Addresses and sizes are ints.  A refusal is `MemoryRefused` with the call, its arguments and errno;
nothing else is decided here.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from ullage.errors import MemoryRefused

PROT_NONE: Final = 0
PROT_READ_WRITE: Final = 3

# include/uapi/asm-generic/mman{,-common}.h; the same on x86-64, AArch64, RISC-V and s390x.
_MAP_PRIVATE_ANONYMOUS_NORESERVE: Final = 0x02 | 0x20 | 0x4000
_MAP_FIXED: Final = 0x10
MADV_HUGEPAGE: Final = 14
MADV_POPULATE_WRITE: Final = 23  # Linux 5.14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def _refused(call: str, size_bytes: int) -> MemoryRefused:
    number = ctypes.get_errno()
    name = errno.errorcode.get(number, str(number))
    return MemoryRefused(f"{call} of {size_bytes} bytes failed with {name}: {os.strerror(number)}.")


def map_inaccessible(size_bytes: int) -> int:
    """Address of a new private range without access and without a commit charge."""
    address = _libc.mmap(None, size_bytes, PROT_NONE, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
    if address is None or address == _MAP_FAILED:
        raise _refused("mmap", size_bytes)
    return int(address)


def remap_inaccessible(address: int, size_bytes: int) -> None:
    """Replace the range by a fresh one without access: its pages are freed in one atomic call."""
    flags = _MAP_PRIVATE_ANONYMOUS_NORESERVE | _MAP_FIXED
    if _libc.mmap(address, size_bytes, PROT_NONE, flags, -1, 0) != address:
        raise _refused("mmap(MAP_FIXED)", size_bytes)


def unmap(address: int, size_bytes: int) -> None:
    if _libc.munmap(address, size_bytes) != 0:
        raise _refused("munmap", size_bytes)


def protect(address: int, size_bytes: int, protection: int) -> None:
    if _libc.mprotect(address, size_bytes, protection) != 0:
        raise _refused("mprotect", size_bytes)


def advise(address: int, size_bytes: int, advice: int) -> None:
    """`madvise`, repeated while a signal interrupts it."""
    while _libc.madvise(address, size_bytes, advice) != 0:
        if ctypes.get_errno() != errno.EINTR:
            raise _refused(f"madvise({advice})", size_bytes)


def zero(address: int, size_bytes: int) -> None:
    """Write zeros.  The range is committed, or the process dies by SIGSEGV."""
    ctypes.memset(address, 0, size_bytes)

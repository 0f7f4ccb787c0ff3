"""The page cache: drop all of it, drop one file's pages, read a file into it, ask what is in it."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 1 << 20

_LOWEST_BIT: Final = bytes(byte & 1 for byte in range(256))  # mincore(2): the others are undefined

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def drop_all() -> bool:
    """Write everything back and drop every clean page.  False where this user may not."""
    os.sync()
    try:
        # Documentation/admin-guide/sysctl/vm.rst: 1 drops page cache, 2 also dentries and inodes.
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def drop_file(path: Path) -> None:
    """Drop the clean pages of one file that no process maps (posix_fadvise(2)).  Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def read_file(path: Path) -> None:
    """Bring the file's pages into the cache, charged to this process where they were not in it."""
    buffer = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def resident_bytes(path: Path) -> int | None:
    """How much of the file is in the cache (mincore(2)); None for a file that is not ours to write.

    Since Linux 5.2 the kernel answers "all of it" about other users' files.  Raises OSError.
    """
    size_bytes = path.stat().st_size
    if not os.access(path, os.W_OK):
        return None
    if size_bytes == 0:
        return 0
    pages = ctypes.create_string_buffer(-(-size_bytes // mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        refused = _libc.mincore(ctypes.addressof(first), size_bytes, pages)
        del first  # the mapping cannot be closed while it is referred to
    if refused:
        number = ctypes.get_errno()
        raise OSError(number, f"mincore: {os.strerror(number)}")
    count = -(-size_bytes // mmap.PAGESIZE)
    return pages.raw[:count].translate(_LOWEST_BIT).count(1) * mmap.PAGESIZE

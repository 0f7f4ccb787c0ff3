"""The page cache: drop all of it, drop one file's pages, read a file into it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 1 << 20


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

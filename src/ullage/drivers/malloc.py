"""The C allocator of this process: glibc's, or tcmalloc where it is preloaded."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

TUNABLES: Final = "GLIBC_TUNABLES"
_HUGE_PAGES: Final = "glibc.malloc.hugetlb"  # glibc 2.35; 1: madvise(MADV_HUGEPAGE)
_M_MMAP_THRESHOLD: Final = -3  # malloc.h

_process = ctypes.CDLL(None)


def release_free_memory() -> str:
    """Give free pages of the heap back to the kernel.  Returns the allocator's name.

    Memory that a load freed stays in the process otherwise, and would be counted as used.
    """
    if hasattr(_process, "MallocExtension_ReleaseFreeMemory"):  # gperftools, c_malloc_extension.h
        _process.MallocExtension_ReleaseFreeMemory()
        return "tcmalloc"
    if hasattr(_process, "malloc_trim"):  # malloc_trim(3), glibc
        _process.malloc_trim(ctypes.c_size_t(0))
        return "glibc"
    return "unknown"


def map_large_blocks(threshold_bytes: int) -> bool:
    """From now on each block of `threshold_bytes` or more is a mapping of its own.

    Freed, it goes back to the kernel as a whole, and no small block can hold on to its neighbours:
    the heap neither keeps nor spreads what a large step took.  False where the allocator is not
    glibc's: then nothing changed.
    """
    if hasattr(_process, "MallocExtension_ReleaseFreeMemory") or not hasattr(_process, "mallopt"):
        return False
    return bool(_process.mallopt(_M_MMAP_THRESHOLD, threshold_bytes))


def with_huge_pages(environment: Mapping[str, str]) -> str:
    """The GLIBC_TUNABLES of a program whose heap is to use huge pages where the kernel gives them
    on request: what `environment` has, and this one unless it is set there."""
    present = environment.get(TUNABLES, "")
    if f"{_HUGE_PAGES}=" in present:
        return present
    return ":".join(filter(None, (present, f"{_HUGE_PAGES}=1")))

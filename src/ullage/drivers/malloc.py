"""The C allocator of this process: glibc's, or tcmalloc where it is preloaded."""

from __future__ import annotations

import ctypes

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

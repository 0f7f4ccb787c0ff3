"""The C allocator of this process: glibc's, or tcmalloc where it is preloaded."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final, Literal

from ullage.drivers import mappings, sysfs
from ullage.units import MIB

_process = ctypes.CDLL(None)

# glibc, malloc/arena.c: a thread's arena lies in heaps of HEAP_MAX_SIZE bytes (twice the largest
# mmap threshold), aligned to it, of which the first part is accessible.
_ARENA_BYTES: Final = 64 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Heap:
    """What the C allocator of this process has: blocks that were handed out, and free memory.

    glibc maps large blocks one by one and gives them back when they are freed: they are no part of
    the heap, and nothing of them is ever cached.
    """

    allocator: Literal["glibc", "tcmalloc"]
    in_use_bytes: int
    free_bytes: int  # for the next allocation; without memory behind it where it was released
    present_bytes: int  # memory behind the heap

    @property
    def cached_bytes(self) -> int:
        """Memory behind what is free.

        Blocks in use that were never touched have none, so this errs on the small side.
        """
        return min(self.free_bytes, max(0, self.present_bytes - self.in_use_bytes))


class _Mallinfo2(ctypes.Structure):
    """mallinfo(3); all arenas together."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def heap(*, root: Path = sysfs.REAL_ROOT) -> Heap | None:
    """None where neither tcmalloc nor glibc from 2.33 on is in charge, or /proc is unreadable."""
    if hasattr(_process, "MallocExtension_GetNumericProperty"):
        return _tcmalloc()
    present_bytes = _heap_present_bytes(root)
    if present_bytes is None or not hasattr(_process, "mallinfo2"):
        return None
    _process.mallinfo2.restype = _Mallinfo2
    info = _process.mallinfo2()
    return Heap(
        allocator="glibc",
        in_use_bytes=info.uordblks,
        free_bytes=info.fordblks,
        present_bytes=present_bytes,
    )


def _tcmalloc() -> Heap | None:
    """Properties as in gperftools/malloc_extension.h; unmapped pages have no memory behind them."""
    names = (
        "generic.heap_size",
        "generic.current_allocated_bytes",
        "tcmalloc.pageheap_unmapped_bytes",
    )
    size, allocated, unmapped = (_tcmalloc_property(name) for name in names)
    if size is None or allocated is None or unmapped is None:
        return None
    return Heap(
        allocator="tcmalloc",
        in_use_bytes=allocated,
        free_bytes=size - allocated,
        present_bytes=size - unmapped,
    )


def _tcmalloc_property(name: str) -> int | None:
    value = ctypes.c_size_t()
    known = _process.MallocExtension_GetNumericProperty(name.encode(), ctypes.byref(value))
    return value.value if known else None


def _heap_present_bytes(root: Path) -> int | None:
    """Memory in glibc's heap and in its threads' arenas; None where unreadable.

    The kernel names the heap only.  An arena is known by where it lies; one that the kernel shows
    as one mapping with a neighbour is missed.
    """
    found = mappings.read(root=root)
    if found is None:
        return None
    return sum(
        mapping.anonymous_bytes
        for mapping, after in zip_longest(found, found[1:])
        if mapping.name == "[heap]" or _is_arena(mapping, after)
    )


def _is_arena(mapping: mappings.Mapping, after: mappings.Mapping | None) -> bool:
    stop_bytes = mapping.start_bytes + _ARENA_BYTES
    if mapping.name or mapping.permissions != "rw-p" or mapping.start_bytes % _ARENA_BYTES:
        return False
    if mapping.stop_bytes == stop_bytes:
        return True
    rest = None if after is None else (after.start_bytes, after.stop_bytes, after.permissions)
    return rest == (mapping.stop_bytes, stop_bytes, "---p")


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

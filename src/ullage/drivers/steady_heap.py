"""glibc's heap, made to keep what a large step frees, in one piece, for the next such step.

As it is, glibc gives the end of its heap back to the kernel whenever that is free, and the next
step takes it again, page by page.  And each thread keeps small blocks that were freed in a cache of
its own (tcache), where they are never joined with their neighbours: they lie between the large
blocks of a step, and after the step they keep the free memory in pieces, other ones each time.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ullage.drivers import sysfs
from ullage.units import MIB

TUNABLES: Final = "GLIBC_TUNABLES"
# glibc's manual, "Memory Allocation Tunables"; read when a process starts.
_THREAD_CACHE: Final = "glibc.malloc.tcache_count"
_HUGE_PAGES: Final = "glibc.malloc.hugetlb"  # 1: asks the kernel for them; from 2.35 on
_OURS: Final = {_THREAD_CACHE: "0", _HUGE_PAGES: "1"}
_THRESHOLDS: Final = ("glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold")
_OLDER_THRESHOLDS: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")  # mallopt(3)

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_MMAP_MAX: Final = -4
_LARGEST_MMAP_THRESHOLD_BYTES: Final = 32 * MIB  # DEFAULT_MMAP_THRESHOLD_MAX of 64 bit, mallopt(3)
_NEVER_TRIM: Final = (1 << 31) - 1  # the most that an int holds

_process = ctypes.CDLL(None)


def keep_freed_memory(*, root: Path = sysfs.REAL_ROOT) -> bool:
    """From now on the heap of this process keeps its free memory, below 32 MiB a block.

    True where it keeps it in one piece as well: the process was started without a thread cache.
    False otherwise, and where nothing was changed: the allocator is not glibc's, or the user set
    its thresholds.
    """
    if hasattr(_process, "MallocExtension_ReleaseFreeMemory") or not hasattr(_process, "mallopt"):
        return False
    tunables = _of_this_process(root)
    if any(name in os.environ for name in _OLDER_THRESHOLDS) or tunables.keys() & set(_THRESHOLDS):
        return False
    # Setting one of them ends glibc's own adjusting of both.
    changed = _process.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES)
    changed &= _process.mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)
    return bool(changed) and tunables.get(_THREAD_CACHE) == "0"


def keep_everything() -> None:
    """From now on no block is mapped on its own, however large: all of them lie in the heap.

    Otherwise the largest blocks of the largest step are mapped, those of a smaller step are not,
    and the heap has no room for them: it grows under load.
    pre: `keep_freed_memory` answered True, and what loading takes for a moment was freed.
    """
    _process.mallopt(_M_MMAP_MAX, 0)


def _of_this_process(root: Path) -> Mapping[str, str]:
    """What it was started with: its environment may have been changed since.

    glibc ends each value that it knows with a null byte where it lies (elf/dl-tunables.c, to 2.38).
    """
    started_with = sysfs.read_optional("/proc/self/environ", root=root) or ""
    values = (
        value.removeprefix(f"{TUNABLES}=")
        for value in started_with.replace("\0glibc.", ":glibc.").split("\0")
        if value.startswith(f"{TUNABLES}=")
    )
    return dict(_pairs(next(values, "")))


def _pairs(tunables: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (x.partition("=") for x in tunables.split(":"))]


def tunables_for_engines(environment: Mapping[str, str]) -> str:
    """The GLIBC_TUNABLES of a program whose heap is to be steady: no tcache, and huge pages where
    the kernel gives them on request.  What `environment` sets of these stays."""
    present = environment.get(TUNABLES, "")
    known = dict(_pairs(present))
    ours = (f"{name}={value}" for name, value in _OURS.items() if name not in known)
    return ":".join(filter(None, (present, *ours)))

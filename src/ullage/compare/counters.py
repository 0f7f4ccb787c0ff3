"""What a group's memory did while a program ran: the unreclaimable peak, kills, reclaim.

The kernel's own peak counters include file pages, which it can take back at any moment, so the
unreclaimable part is sampled from memory.stat instead.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from ullage.drivers.memory_group import MemoryGroup

INTERVAL_S: Final = 0.005  # 200 Hz, less the time that one reading takes

_V2_UNRECLAIMABLE: Final = ("anon", "shmem", "slab_unreclaimable", "kernel_stack", "pagetables")


def unreclaimable_bytes(stat: Mapping[str, int], kernel_bytes: int | None) -> int:
    """Memory of a group that the kernel cannot take back without swap.

    Version 1 (recognised by its `total_` keys): anonymous and shared memory, locked file pages and
    kernel memory.  Version 2 names the parts of kernel memory that cannot be reclaimed.
    """
    if "total_rss" not in stat:
        return sum(stat[key] for key in _V2_UNRECLAIMABLE)
    # `unevictable` counts locked anonymous and shared pages too, which are already in the sum.
    file_bytes = stat["total_cache"] - stat["total_shmem"]
    evictable = stat["total_inactive_file"] + stat["total_active_file"]
    locked_file = min(stat["total_unevictable"], max(0, file_bytes - evictable))
    return stat["total_rss"] + stat["total_shmem"] + locked_file + (kernel_bytes or 0)


def refaults(stat: Mapping[str, int]) -> int | None:
    """File pages read again after they had been reclaimed; None where the kernel does not count."""
    return stat.get("total_workingset_refault_file", stat.get("workingset_refault_file"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Totals of one group's life so far.  None: not counted here."""

    peak_unreclaimable_bytes: int | None
    samples: int
    oom_kills: int | None
    limit_hits: int | None
    refaulted_pages: int | None


UNCOUNTED: Final = Counters(
    peak_unreclaimable_bytes=None, samples=0, oom_kills=None, limit_hits=None, refaulted_pages=None
)


class Sampler:
    """Samples a group in a thread while its `with` block runs; without a group it does nothing."""

    def __init__(self, group: MemoryGroup | None) -> None:
        self._group = group
        self._peak_bytes = 0
        self._samples = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ullage-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        if self._group is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        assert self._group is not None  # noqa: S101 - the thread is only started with one
        while not self._done.wait(INTERVAL_S):
            now = unreclaimable_bytes(self._group.stat(), self._group.kernel_bytes())
            self._peak_bytes = max(self._peak_bytes, now)
            self._samples += 1

    def counters(self) -> Counters:
        """The counters until now, read before the group is removed."""
        if self._group is None:
            return UNCOUNTED
        return Counters(
            peak_unreclaimable_bytes=self._peak_bytes if self._samples else None,
            samples=self._samples,
            oom_kills=self._group.oom_kills(),
            limit_hits=self._group.limit_hits(),
            refaulted_pages=refaults(self._group.stat()),
        )

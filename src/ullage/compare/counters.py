"""What a group's memory did while a program ran: the unreclaimable peak, kills, reclaim.

The kernel's own peak counters include file pages, which it can take back at any moment, so the
unreclaimable part is sampled instead.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from ullage.accounting.exact import unreclaimable_bytes
from ullage.devices import host
from ullage.drivers.memory_group import MemoryGroup
from ullage.errors import UllageError

INTERVAL_S: Final = 0.005  # 200 Hz, less the time that one reading takes


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Totals of one group's life so far.  None: not counted here."""

    peak_unreclaimable_bytes: int | None
    samples_per_s: float | None
    oom_kills: int | None
    limit_hits: int | None
    refaulted_pages: int | None


UNCOUNTED: Final = Counters(
    peak_unreclaimable_bytes=None,
    samples_per_s=None,
    oom_kills=None,
    limit_hits=None,
    refaulted_pages=None,
)


class Sampler:
    """Samples a group in a thread while its `with` block runs; without a group it does nothing.

    One sample that fails makes the peak unknown: the highest may have been that one.
    """

    def __init__(self, group: MemoryGroup | None) -> None:
        self._group = group
        self._peak_bytes: int | None = 0
        self._samples = 0
        self._began_s = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ullage-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        if self._group is not None:
            self._began_s = time.monotonic()
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
        while self._peak_bytes is not None and not self._done.wait(INTERVAL_S):
            now_bytes = _unreclaimable_bytes(self._group)
            self._peak_bytes = None if now_bytes is None else max(self._peak_bytes, now_bytes)
            self._samples += 1

    def counters(self) -> Counters:
        """The counters until now, read before the group is removed."""
        if self._group is None:
            return UNCOUNTED
        known = self._peak_bytes is not None and self._samples > 0
        rate = self._samples / (time.monotonic() - self._began_s)
        return Counters(
            peak_unreclaimable_bytes=self._peak_bytes if known else None,
            samples_per_s=round(rate, 1) if known else None,
            oom_kills=self._group.oom_kills(),
            limit_hits=self._group.limit_hits(),
            refaulted_pages=host.read_group(self._group.path).parts.file_refaults,
        )


def _unreclaimable_bytes(group: MemoryGroup) -> int | None:
    try:
        return unreclaimable_bytes(host.read_group(group.path).parts)
    except (OSError, ValueError, UllageError):
        return None

"""Sets of byte ranges, as sorted tuples of extents that do not touch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Extent:
    """Bytes from `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


def merged(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """The same bytes, sorted; neighbours and overlaps joined, empty ones dropped."""
    result: list[Extent] = []
    for extent in sorted(extents):
        if extent.size_bytes <= 0:
            continue
        if result and extent.start <= result[-1].stop:
            last = result.pop()
            extent = Extent(start=last.start, stop=max(last.stop, extent.stop))
        result.append(extent)
    return tuple(result)


def without(extents: Iterable[Extent], removed: Iterable[Extent]) -> tuple[Extent, ...]:
    """The bytes of `extents` that are not in `removed`."""
    left = list(merged(extents))
    for hole in merged(removed):
        left = [part for extent in left for part in _outside(extent, hole)]
    return merged(left)


def _outside(extent: Extent, hole: Extent) -> tuple[Extent, ...]:
    before = Extent(start=extent.start, stop=min(extent.stop, hole.start))
    after = Extent(start=max(extent.start, hole.stop), stop=extent.stop)
    return tuple(part for part in (before, after) if part.size_bytes > 0)


def covered_bytes(extents: Iterable[Extent]) -> int:
    return sum(extent.size_bytes for extent in merged(extents))

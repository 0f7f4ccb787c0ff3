"""One reserved range, and which parts of it have memory.  All-or-nothing, over any primitives.

`commit` takes byte ranges, widens them to granules, and commits those granules that have no memory
yet, in steps.  Before each step it asks how much can still be taken: where exceeding a limit kills
the process, looking first is the only way to fail with an error.

Each call is a transaction under one lock.  Where it is refused, the same granules have memory as
before; those that had lost theirs in between read as zeros.  Where putting back is refused too, the
error counts the bytes that are astray, and from then on the region only gives memory back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

from ullage.errors import MemoryRefused, OverAvailable, UllageError
from ullage.units import align_down, align_up, gib
from ullage.vmem.base import VirtualMemory
from ullage.vmem.extents import Extent, covered_bytes, merged, without

Available = Callable[[], int | None]
"""How many bytes could still be taken now; None when nothing is known to limit it."""


def unlimited() -> int | None:
    """An `Available` for memory that nothing limits."""
    return None


class Region:
    """Addresses from `address` on, `size_bytes` of them, for ever the same until `close`.

    A region that nobody refers to any more is given back; at the end of the process the kernel does
    that, after the last thread that may still read there.

    `lock` is for callers whose own state changes together with the memory.
    """

    def __init__(
        self, memory: VirtualMemory, size_bytes: int, *, available: Available = unlimited
    ) -> None:
        granularity_bytes = memory.capabilities.granularity_bytes
        self._memory = memory
        self._available = available
        self._committed: tuple[Extent, ...] = ()
        self._astray_bytes = 0
        self.lock = threading.RLock()
        self.size_bytes = align_up(max(size_bytes, 1), granularity_bytes)
        self.address = memory.reserve(self.size_bytes)
        self._open = True
        self._release = weakref.finalize(self, memory.release, self.address, self.size_bytes)
        self._release.atexit = False

    @property
    def physical_bytes(self) -> int:
        """Memory behind the region now."""
        return covered_bytes(self._committed)

    @property
    def committed(self) -> Sequence[Extent]:
        """The granules with memory, as offsets: sorted, apart from each other."""
        return self._committed

    @property
    def astray_bytes(self) -> int:
        """Bytes that have memory and should not, or the reverse: an undoing was refused."""
        return self._astray_bytes

    def commit(self, ranges: Iterable[Extent]) -> None:
        """Put memory behind byte ranges (offsets).  New memory reads as zeros.

        Raises OverAvailable before the kernel would kill, MemoryRefused when it refuses; then
        nothing has changed.
        """
        with self.lock, ExitStack() as undo:
            self._refuse_if_closed()
            self._refuse_if_astray()
            wanted = merged(self._widened(extent) for extent in ranges)
            new = without(wanted, self._committed)
            self._check_room(covered_bytes(new))
            for step in self._steps(new):
                self._check_room(step.size_bytes)
                undo.callback(self._undo, self._decommit, step)
                self._commit(step)
            undo.pop_all()

    def decommit(self, ranges: Iterable[Extent]) -> None:
        """Take the memory of byte ranges away: only granules that lie in them as a whole.

        Raises MemoryRefused; then what was taken is back, and reads as zeros.
        """
        with self.lock, ExitStack() as undo:
            inner = merged(self._narrowed(extent) for extent in merged(ranges))
            kept = without(self._committed, inner)
            for extent in without(self._committed, kept):
                self._decommit(extent)
                for step in self._steps([extent]):
                    undo.callback(self._undo, self._put_back, step)
            undo.pop_all()

    def zero(self, extent: Extent) -> None:
        """Overwrite a byte range with zeros.  pre: it is committed."""
        with self.lock:
            self._refuse_if_closed()
            if extent.size_bytes:
                self._memory.zero(self.address + extent.start, extent.size_bytes)

    def close(self) -> None:
        """Give everything back.  Closing again does nothing; `commit` and `zero` are refused."""
        with self.lock:
            if self._open:
                self._memory.release(self.address, self.size_bytes)
                self._release.detach()
                self._open = False
                self._committed = ()

    def _commit(self, step: Extent) -> None:
        self._memory.commit(self.address + step.start, step.size_bytes)
        self._committed = merged((*self._committed, step))

    def _decommit(self, extent: Extent) -> None:
        self._memory.decommit(self.address + extent.start, extent.size_bytes)
        self._committed = without(self._committed, (extent,))

    def _put_back(self, step: Extent) -> None:
        self._check_room(step.size_bytes)
        self._commit(step)

    def _undo(self, change: Callable[[Extent], None], step: Extent) -> None:
        """The other steps are undone whatever happens to this one."""
        try:
            change(step)
        except UllageError as error:
            self._astray_bytes += step.size_bytes
            raise MemoryRefused(self._astray_text()) from error

    def _refuse_if_astray(self) -> None:
        if self._astray_bytes:
            raise MemoryRefused(self._astray_text())

    def _astray_text(self) -> str:
        return (
            f"Undoing a refused change was refused too, and {self._astray_bytes} bytes are astray. "
            "Close the region or end the process: until then no more memory is committed."
        )

    def _refuse_if_closed(self) -> None:
        """By now another mapping may lie at these addresses."""
        if not self._open:
            raise ValueError("The region is closed. Reserve a new one.")

    def _check_room(self, size_bytes: int) -> None:
        left_bytes = self._available()
        if left_bytes is not None and size_bytes > left_bytes:
            raise OverAvailable(
                f"{gib(size_bytes, digits=3)} are to be committed and {gib(left_bytes, digits=3)} "
                "are available. Nothing was changed: ask for less, or free memory first."
            )

    def _steps(self, extents: Iterable[Extent]) -> Iterator[Extent]:
        """Pieces of at most `step_bytes` that end on multiples of it, so that huge pages fit."""
        step_bytes = self._memory.capabilities.step_bytes
        for extent in extents:
            start = extent.start
            while start < extent.stop:
                boundary = align_down(self.address + start, step_bytes) + step_bytes - self.address
                stop = min(extent.stop, boundary)
                yield Extent(start=start, stop=stop)
                start = stop

    def _widened(self, extent: Extent) -> Extent:
        if not 0 <= extent.start <= extent.stop <= self.size_bytes:
            raise ValueError(f"{extent} is outside a region of {self.size_bytes} bytes.")
        if extent.size_bytes == 0:
            return extent
        granularity_bytes = self._memory.capabilities.granularity_bytes
        return Extent(
            start=align_down(extent.start, granularity_bytes),
            stop=align_up(extent.stop, granularity_bytes),
        )

    def _narrowed(self, extent: Extent) -> Extent:
        granularity_bytes = self._memory.capabilities.granularity_bytes
        start = align_up(extent.start, granularity_bytes)
        return Extent(start=start, stop=max(start, align_down(extent.stop, granularity_bytes)))

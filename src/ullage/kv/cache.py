"""A KV cache that grows, shrinks, sleeps and wakes at addresses that never change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from ullage.errors import MemoryRefused
from ullage.kv.size import Layout, Segment
from ullage.vmem.base import VirtualMemory
from ullage.vmem.extents import Extent
from ullage.vmem.region import Available, Region, unlimited


class KVCache:
    """Addresses for `layout.capacity_blocks`, memory behind the first `committed_blocks`.

    Block 0, the null block to which engines send what nobody reads, always has memory.  A block
    that gets memory reads as zeros, also when it had memory before.

    Each call is a transaction under the region's lock.  While the cache is asleep it has its
    addresses and its count, and no memory: whoever reads or writes there dies by SIGSEGV.
    """

    def __init__(
        self, memory: VirtualMemory, layout: Layout, *, available: Available = unlimited
    ) -> None:
        self.layout = layout
        self._blocks = 0
        self._asleep = False
        self._region = Region(memory, layout.size_bytes, available=available)
        with ExitStack() as undo:
            undo.callback(self._region.close)
            self.commit(1)
            undo.pop_all()

    @property
    def committed_blocks(self) -> int:
        return self._blocks

    @property
    def asleep(self) -> bool:
        return self._asleep

    @property
    def physical_bytes(self) -> int:
        """Memory behind the cache now: `layout.physical_bytes_for(committed_blocks)`; asleep: 0."""
        return self._region.physical_bytes

    @property
    def address(self) -> int:
        return self._region.address

    def segment_address(self, segment: Segment) -> int:
        return self._region.address + segment.offset_bytes

    def commit(self, blocks: int) -> int:
        """Grow to `blocks`, or to the capacity if that is less.  Returns the count after it.

        A smaller count than the present one changes nothing: `shrink` is the verb for that.
        Raises MemoryRefused; then nothing has changed.
        """
        wanted = min(blocks, self.layout.capacity_blocks)
        with self._region.lock:
            if wanted > self._blocks:
                if self._asleep:
                    raise ValueError("The cache is asleep. Wake it before it grows.")
                self._zero_again(wanted)
                self._region.commit(self._extents(0, wanted))
                self._blocks = wanted
            return self._blocks

    def shrink(self, blocks: int) -> int:
        """Keep the first `blocks`, at least the null block, with their contents.

        Raises MemoryRefused; then the count is as before, and the blocks that were to go may read
        as zeros.
        """
        with self._region.lock:
            kept = min(self._blocks, max(1, blocks))
            self._give_back(self._dead(kept), blocks=kept, asleep=self._asleep)
            return self._blocks

    def sleep(self) -> None:
        """Give all memory back, and keep addresses and count.  Asleep already: does nothing.

        Raises MemoryRefused; then the cache is awake as before, and blocks may read as zeros.
        """
        with self._region.lock:
            whole = Extent(start=0, stop=self._region.size_bytes)
            self._give_back([whole], blocks=self._blocks, asleep=True)

    def wake(self) -> None:
        """Put memory behind the same blocks again; all of it reads as zeros.  Awake: does nothing.

        Raises OverAvailable, MemoryRefused; then the cache is asleep as before.
        """
        with self._region.lock:
            if self._asleep:
                self._region.commit(self._extents(0, self._blocks))
                self._asleep = False

    def close(self) -> None:
        """Give memory and addresses back.  Whoever still reads there dies by SIGSEGV."""
        with self._region.lock:
            self._region.close()
            self._blocks, self._asleep = 0, False

    def _give_back(self, extents: Sequence[Extent], *, blocks: int, asleep: bool) -> None:
        """With bytes astray a block may lack its memory: then the state stays the safer one."""
        before = self._blocks, self._asleep
        self._blocks, self._asleep = blocks, asleep
        try:
            self._region.decommit(extents)
        except MemoryRefused:
            if not self._region.astray_bytes:
                self._blocks, self._asleep = before
            raise

    def _extents(self, first_block: int, stop_block: int) -> list[Extent]:
        return [
            Extent(
                start=segment.offset_bytes + first_block * segment.stride_bytes,
                stop=segment.offset_bytes + stop_block * segment.stride_bytes,
            )
            for segment in self.layout.segments
        ]

    def _dead(self, blocks: int) -> list[Extent]:
        """Where nothing lives when `blocks` are kept.

        A granule that two segments share holds the second one's block 0, which always lives; what
        follows the last segment, up to the region's last granule, never does.
        """
        *inner, last = self._extents(blocks, self.layout.capacity_blocks)
        return [*inner, Extent(start=last.start, stop=self._region.size_bytes)]

    def _zero_again(self, blocks: int) -> None:
        """New blocks in granules that have memory already may hold what lived there before."""
        for new in self._extents(self._blocks, blocks):
            for old in self._region.committed:
                start, stop = max(new.start, old.start), min(new.stop, old.stop)
                if start < stop:
                    self._region.zero(Extent(start=start, stop=stop))

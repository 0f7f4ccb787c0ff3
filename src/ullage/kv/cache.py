"""A KV cache that grows and shrinks at addresses that never change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from ullage.kv.size import Layout, Segment
from ullage.vmem.base import VirtualMemory
from ullage.vmem.extents import Extent
from ullage.vmem.region import Available, Region, unlimited


class KVCache:
    """Addresses for `layout.capacity_blocks`, memory behind the first `committed_blocks`.

    Block 0, the null block to which engines send what nobody reads, always has memory.  A block
    that gets memory reads as zeros, also when it had memory before.
    """

    def __init__(
        self, memory: VirtualMemory, layout: Layout, *, available: Available = unlimited
    ) -> None:
        self.layout = layout
        self._blocks = 0
        self._region = Region(memory, layout.size_bytes, available=available)
        with ExitStack() as undo:
            undo.callback(self._region.close)
            self.commit(1)
            undo.pop_all()

    @property
    def committed_blocks(self) -> int:
        return self._blocks

    @property
    def physical_bytes(self) -> int:
        """Memory behind the cache now; `layout.physical_bytes_for(committed_blocks)`."""
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
        if wanted > self._blocks:
            had_memory = self._region.committed
            self._region.commit(self._extents(0, wanted))
            self._zero_again(had_memory, wanted)
            self._blocks = wanted
        return self._blocks

    def shrink(self, blocks: int) -> int:
        """Keep the first `blocks`, at least the null block, with their contents.

        Raises MemoryRefused; then the count is what was asked for, some of the memory behind the
        others may still be there, and shrinking to the same count tries again.
        """
        self._blocks = min(self._blocks, max(1, blocks))
        self._region.decommit(self._dead(self._blocks))
        return self._blocks

    def close(self) -> None:
        """Give memory and addresses back.  Whoever still reads there dies by SIGSEGV."""
        self._region.close()
        self._blocks = 0

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

    def _zero_again(self, had_memory: Sequence[Extent], blocks: int) -> None:
        """New blocks in granules that had memory already may hold what lived there before."""
        for new in self._extents(self._blocks, blocks):
            for old in had_memory:
                start, stop = max(new.start, old.start), min(new.stop, old.stop)
                if start < stop:
                    self._region.zero(Extent(start=start, stop=stop))

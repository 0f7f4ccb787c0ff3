"""Where a KV cache's blocks lie, and how much memory n of them take.  Exact to the granule.

A layout is a set of segments, each a contiguous run of `capacity_blocks` pieces of `stride_bytes`:
one segment for each layer where a layer's blocks lie together (layer-outermost), one for the whole
cache where a block of all layers lies together (block-outermost).  A prefix of n blocks is then a
prefix of every segment, so n can grow without moving anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ullage.units import ceil_div


@dataclass(frozen=True, kw_only=True)
class Segment:
    """`capacity_blocks` pieces of `stride_bytes`, from `offset_bytes` on."""

    offset_bytes: int
    stride_bytes: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where an engine puts the same-shaped layers of one group.

    Piece b of layer l starts at
    `offset_bytes` + l * `layer_stride_bytes` + b * `block_stride_bytes`.
    """

    layers: tuple[str, ...]
    offset_bytes: int
    layer_stride_bytes: int
    block_stride_bytes: int

    def layer_offset_bytes(self, index: int) -> int:
        return self.offset_bytes + index * self.layer_stride_bytes


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A KV cache of `capacity_blocks` in `size_bytes`, which its segments tile."""

    size_bytes: int
    capacity_blocks: int
    segments: tuple[Segment, ...]
    granularity_bytes: int

    @cached_property
    def block_bytes(self) -> int:
        """Bytes that one block takes over all segments."""
        return sum(segment.stride_bytes for segment in self.segments)

    def physical_bytes_for(self, blocks: int) -> int:
        """Memory behind the first `blocks` blocks: whole granules, each counted once."""
        granule = self.granularity_bytes
        granules = 0
        next_free = 0
        for segment in self.segments:
            if blocks == 0:
                break
            first = max(segment.offset_bytes // granule, next_free)
            stop = ceil_div(segment.offset_bytes + blocks * segment.stride_bytes, granule)
            granules += max(0, stop - first)
            next_free = max(next_free, stop)
        return granules * granule

    def blocks_within(self, memory_bytes: int) -> int:
        """The most blocks, up to the capacity, whose physical bytes fit in `memory_bytes`."""
        return blocks_within((self,), memory_bytes)


def blocks_within(layouts: Sequence[Layout], memory_bytes: int) -> int:
    """The most blocks that every one of `layouts` can have, so that all of them together fit."""
    low, high = 0, min(layout.capacity_blocks for layout in layouts)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(layout.physical_bytes_for(middle) for layout in layouts) <= memory_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def layout(
    placements: Sequence[Placement],
    *,
    size_bytes: int,
    capacity_blocks: int,
    granularity_bytes: int,
) -> Layout:
    """The segments that placements stand in.  Groups may lie over each other, byte for byte.

    Raises ValueError where a prefix of blocks would not be a prefix of every segment.
    """
    strides = {placement.block_stride_bytes for placement in placements}
    if len(strides) == 1:
        segments = _equal_segments(strides.pop(), size_bytes, capacity_blocks)
    else:
        segments = _layer_segments(placements)
    _check_tiling(segments, size_bytes, capacity_blocks)
    return Layout(
        size_bytes=size_bytes,
        capacity_blocks=capacity_blocks,
        segments=segments,
        granularity_bytes=granularity_bytes,
    )


def _equal_segments(stride: int, size_bytes: int, capacity_blocks: int) -> tuple[Segment, ...]:
    """One stride: layer-outermost gives a segment for each layer, block-outermost one in all."""
    segment_bytes = stride * capacity_blocks
    if segment_bytes == 0 or size_bytes == 0 or size_bytes % segment_bytes:
        raise ValueError(
            f"{size_bytes} bytes are no whole number of segments of {capacity_blocks} blocks of "
            f"{stride} bytes."
        )
    offsets = range(0, size_bytes, segment_bytes)
    return tuple(Segment(offset_bytes=offset, stride_bytes=stride) for offset in offsets)


def _layer_segments(placements: Iterable[Placement]) -> tuple[Segment, ...]:
    """Several strides: every layer is a segment, and layers at one offset share one stride."""
    stride_at: dict[int, int] = {}
    for placement in placements:
        for index in range(len(placement.layers)):
            offset = placement.layer_offset_bytes(index)
            stride = stride_at.setdefault(offset, placement.block_stride_bytes)
            if stride != placement.block_stride_bytes:
                raise ValueError(f"Layers alias offset {offset} with different block strides.")
    return tuple(
        Segment(offset_bytes=offset, stride_bytes=stride)
        for offset, stride in sorted(stride_at.items())
    )


def _check_tiling(segments: Sequence[Segment], size_bytes: int, capacity_blocks: int) -> None:
    expected_offset = 0
    for segment in segments:
        if segment.offset_bytes != expected_offset:
            break
        expected_offset += segment.stride_bytes * capacity_blocks
    else:
        if expected_offset == size_bytes:
            return
    raise ValueError(
        f"Segments do not tile the allocation: at {expected_offset} of {size_bytes} bytes. "
        "Different block strides need a layer-outermost layout."
    )

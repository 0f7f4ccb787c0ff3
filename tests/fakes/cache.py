"""A small KV cache in which blocks and segments share granules, and its bytes."""

from __future__ import annotations

import itertools

from fakes.memory import FakeMemory
from ullage.kv.cache import KVCache
from ullage.kv.size import Layout, Segment

STRIDES = (24, 24, 40)
CAPACITY = 10


def make_layout(strides: tuple[int, ...] = STRIDES, capacity: int = CAPACITY) -> Layout:
    """Strides that are no multiples of the granule: blocks and segments share granules."""
    offsets = itertools.accumulate((stride * capacity for stride in strides), initial=0)
    segments = tuple(
        Segment(offset_bytes=offset, stride_bytes=stride)
        for stride, offset in zip(strides, offsets, strict=False)
    )
    return Layout(
        size_bytes=sum(strides) * capacity,
        capacity_blocks=capacity,
        segments=segments,
        granularity_bytes=16,
    )


def read(cache: KVCache, memory: FakeMemory, segment: Segment, block: int) -> bytes:
    start = cache.segment_address(segment) + block * segment.stride_bytes
    return memory.read(start, segment.stride_bytes)


def write(cache: KVCache, memory: FakeMemory, segment: Segment, block: int, byte: int) -> None:
    start = cache.segment_address(segment) + block * segment.stride_bytes
    memory.write(start, bytes([byte]) * segment.stride_bytes)


def fill(cache: KVCache, memory: FakeMemory) -> None:
    for segment in cache.layout.segments:
        for block in range(cache.committed_blocks):
            write(cache, memory, segment, block, 1 + block)


def contents(cache: KVCache, memory: FakeMemory) -> list[list[bytes]]:
    return [
        [read(cache, memory, segment, block) for block in range(cache.committed_blocks)]
        for segment in cache.layout.segments
    ]

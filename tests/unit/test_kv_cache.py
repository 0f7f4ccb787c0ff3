"""A KV cache that grows and shrinks, over memory that keeps exact books, held to a model that
knows every byte."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes.memory import FakeMemory, Fatal
from ullage.errors import MemoryRefused, OverAvailable, Unreadable
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


class GrowsAndShrinks(RuleBasedStateMachine):
    """Every byte of every committed block, after any order of calls and refusals."""

    @initialize(
        strides=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple),
        capacity=st.integers(1, 10),
    )
    def start(self, strides: tuple[int, ...], capacity: int) -> None:
        self.memory = FakeMemory()
        self.layout = make_layout(strides, capacity)
        self.cache = KVCache(self.memory, self.layout, available=self.memory.available)
        self.address = self.cache.address
        self.model = [[0] for _ in strides]  # for each segment the byte that fills each block

    @rule(blocks=st.integers(-2, 12))
    def grow(self, blocks: int) -> None:
        before = self.cache.committed_blocks
        after = self.cache.commit(blocks)
        assert after == max(before, min(blocks, self.layout.capacity_blocks))
        for filled in self.model:
            filled.extend([0] * (after - before))

    @rule(blocks=st.integers(-2, 12))
    def shrink(self, blocks: int) -> None:
        before = self.cache.committed_blocks
        after = self.cache.shrink(blocks)
        assert after == min(before, max(1, blocks))
        for filled in self.model:
            del filled[after:]

    @rule(segment=st.integers(0, 3), block=st.integers(0, 11), byte=st.integers(0, 255))
    def use(self, segment: int, block: int, byte: int) -> None:
        segment %= len(self.model)
        block %= self.cache.committed_blocks
        write(self.cache, self.memory, self.layout.segments[segment], block, byte)
        self.model[segment][block] = byte

    @rule(blocks=st.integers(2, 12), after=st.integers(0, 12))
    def be_refused(self, blocks: int, after: int) -> None:
        self.memory.fail_after = after
        try:
            self.grow(blocks)
        except MemoryRefused:
            pass
        finally:
            self.memory.fail_after = None

    @rule(blocks=st.integers(2, 12), room=st.integers(0, 20))
    def meet_the_limit(self, blocks: int, room: int) -> None:
        self.memory.limit_bytes = self.memory.physical_bytes + 16 * room
        fits = self.layout.blocks_within(self.memory.limit_bytes)
        try:
            self.grow(blocks)
        except OverAvailable:
            assert fits < min(blocks, self.layout.capacity_blocks)
        finally:
            self.memory.limit_bytes = None

    @precondition(lambda self: hasattr(self, "cache"))
    @invariant()
    def every_byte_is_what_the_model_says(self) -> None:
        for segment, filled in zip(self.layout.segments, self.model, strict=True):
            for block, byte in enumerate(filled):
                content = read(self.cache, self.memory, segment, block)
                assert content == bytes([byte]) * segment.stride_bytes

    @precondition(lambda self: hasattr(self, "cache"))
    @invariant()
    def memory_is_what_the_layout_says(self) -> None:
        expected = self.layout.physical_bytes_for(self.cache.committed_blocks)
        assert self.cache.physical_bytes == self.memory.physical_bytes == expected

    @precondition(lambda self: hasattr(self, "cache"))
    @invariant()
    def addresses_and_the_null_block_stay(self) -> None:
        assert self.cache.address == self.address
        assert list(self.memory.reserved) == [self.address]
        assert self.cache.committed_blocks >= 1


TestGrowsAndShrinks = GrowsAndShrinks.TestCase
TestGrowsAndShrinks.settings = settings(max_examples=60, stateful_step_count=20)


def test_a_new_cache_has_memory_for_the_null_block_alone():
    memory = FakeMemory()
    cache = KVCache(memory, make_layout())
    assert cache.committed_blocks == 1
    assert memory.physical_bytes == make_layout().physical_bytes_for(1)
    assert contents(cache, memory) == [[bytes(stride)] for stride in STRIDES]


def test_a_block_without_memory_cannot_be_read():
    memory = FakeMemory()
    cache = KVCache(memory, make_layout())
    with pytest.raises(Fatal, match="SIGSEGV"):
        read(cache, memory, cache.layout.segments[0], 5)


def test_more_than_the_capacity_is_the_capacity_and_less_than_now_changes_nothing():
    cache = KVCache(FakeMemory(), make_layout())
    assert cache.commit(CAPACITY + 1) == CAPACITY
    assert cache.commit(3) == CAPACITY


def test_a_cache_that_gets_no_null_block_leaves_no_addresses_behind():
    memory = FakeMemory(limit_bytes=0)
    with pytest.raises(OverAvailable):
        KVCache(memory, make_layout(), available=memory.available)
    assert memory.reserved == {}


def test_a_cache_whose_room_cannot_be_read_leaves_no_addresses_behind():
    def unreadable() -> int:
        raise Unreadable("no /proc")

    memory = FakeMemory()
    with pytest.raises(Unreadable):
        KVCache(memory, make_layout(), available=unreadable)
    assert memory.reserved == {}


def test_a_refusal_at_any_primitive_of_growth_leaves_every_byte_as_it_was():
    for count in itertools.count():
        memory = FakeMemory()
        cache = KVCache(memory, make_layout())
        cache.commit(3)
        fill(cache, memory)
        before, granules = contents(cache, memory), set(memory.granules)
        memory.fail_after = count
        try:
            cache.commit(CAPACITY)
        except MemoryRefused:
            assert cache.committed_blocks == 3
            assert contents(cache, memory) == before
            assert set(memory.granules) == granules
        else:
            memory.fail_after = None
            break
    assert count >= 3


def test_a_refusal_at_any_primitive_of_shrinking_leaves_no_block_without_memory():
    refused = 0
    for count in itertools.count():
        memory = FakeMemory()
        cache = KVCache(memory, make_layout())
        cache.commit(CAPACITY)
        fill(cache, memory)
        kept = [blocks[:3] for blocks in contents(cache, memory)]
        memory.fail_after = count
        try:
            cache.shrink(3)
        except MemoryRefused:
            refused += 1
            assert contents(cache, memory) == kept
            assert cache.physical_bytes == memory.physical_bytes
            cache.shrink(3)
            assert cache.physical_bytes == cache.layout.physical_bytes_for(3)
            cache.commit(CAPACITY)
            grown = contents(cache, memory)
            assert [blocks[:3] for blocks in grown] == kept
            assert not any(any(block) for blocks in grown for block in blocks[3:])
        else:
            memory.fail_after = None
            break
    assert refused == len(STRIDES)


def test_closing_gives_everything_back_and_a_closed_cache_has_no_blocks():
    memory = FakeMemory()
    cache = KVCache(memory, make_layout())
    cache.commit(CAPACITY)
    cache.close()
    cache.close()
    assert (memory.reserved, memory.granules) == ({}, {})
    assert (cache.committed_blocks, cache.physical_bytes, cache.shrink(1)) == (0, 0, 0)
    with pytest.raises(ValueError, match="closed"):
        cache.commit(1)

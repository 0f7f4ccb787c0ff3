"""A KV cache that grows, shrinks, sleeps and wakes, over memory that keeps exact books."""

from __future__ import annotations

import pytest

from fakes.cache import CAPACITY, STRIDES, contents, fill, make_layout, read
from fakes.memory import FakeMemory, Fatal
from ullage.errors import OverAvailable, Unreadable
from ullage.kv.cache import KVCache


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


def test_asleep_it_has_addresses_and_count_and_no_memory():
    memory = FakeMemory()
    cache = KVCache(memory, make_layout())
    cache.commit(5)
    address = cache.address
    cache.sleep()
    cache.sleep()
    assert (cache.address, cache.committed_blocks, cache.asleep) == (address, 5, True)
    assert cache.physical_bytes == memory.physical_bytes == 0
    assert list(memory.reserved) == [address]
    with pytest.raises(Fatal, match="SIGSEGV"):
        read(cache, memory, cache.layout.segments[0], 0)


def test_awake_again_it_has_the_same_blocks_all_zero_and_waking_twice_does_nothing():
    memory = FakeMemory()
    cache = KVCache(memory, make_layout())
    cache.commit(5)
    fill(cache, memory)
    cache.sleep()
    cache.wake()
    assert contents(cache, memory) == [[bytes(stride)] * 5 for stride in STRIDES]
    fill(cache, memory)
    before = contents(cache, memory)
    cache.wake()
    assert contents(cache, memory) == before


def test_a_wake_that_does_not_fit_is_refused_and_fewer_blocks_may_wake():
    memory = FakeMemory()
    cache = KVCache(memory, make_layout(), available=memory.available)
    cache.commit(CAPACITY)
    cache.sleep()
    memory.limit_bytes = cache.layout.physical_bytes_for(CAPACITY) - 1
    with pytest.raises(OverAvailable, match="are available"):
        cache.wake()
    assert (cache.asleep, cache.committed_blocks, memory.granules) == (True, CAPACITY, {})
    cache.shrink(5)
    cache.wake()
    assert cache.physical_bytes == cache.layout.physical_bytes_for(5)


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

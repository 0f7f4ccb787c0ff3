"""A KV cache whose changes are refused half way, and one that two threads change at once."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.cache import CAPACITY, contents, fill, make_layout
from fakes.memory import FakeMemory
from ullage.errors import MemoryRefused
from ullage.kv.cache import KVCache


def grow(cache: KVCache) -> None:
    cache.commit(CAPACITY)


def shrink(cache: KVCache) -> None:
    cache.shrink(2)


@pytest.mark.parametrize(
    ("change", "kept_blocks", "primitives"),
    [(grow, 5, 12), (shrink, 2, 3), (KVCache.sleep, 0, 3), (KVCache.close, 5, 1)],
)
def test_a_refusal_at_any_primitive_leaves_memory_counters_and_kept_blocks_as_they_were(
    change, kept_blocks, primitives
):
    for count in itertools.count():
        memory = FakeMemory()
        cache = KVCache(memory, make_layout())
        cache.commit(5)
        fill(cache, memory)
        before, granules = contents(cache, memory), set(memory.granules)
        memory.fail_after = count
        try:
            change(cache)
        except MemoryRefused:
            assert (cache.committed_blocks, cache.asleep) == (5, False)
            assert set(memory.granules) == granules
            assert cache.physical_bytes == memory.physical_bytes
            after = contents(cache, memory)
            assert [blocks[:kept_blocks] for blocks in after] == [
                blocks[:kept_blocks] for blocks in before
            ]
        else:
            memory.fail_after = None
            break
    assert count == primitives


def test_a_refusal_at_any_primitive_of_waking_leaves_the_cache_asleep():
    for count in itertools.count():
        memory = FakeMemory()
        cache = KVCache(memory, make_layout())
        cache.commit(5)
        cache.sleep()
        memory.fail_after = count
        try:
            cache.wake()
        except MemoryRefused:
            assert (cache.committed_blocks, cache.asleep, memory.granules) == (5, True, {})
            cache.wake()
        memory.fail_after = None
        assert (cache.committed_blocks, cache.asleep) == (5, False)
        assert not any(any(block) for blocks in contents(cache, memory) for block in blocks)
        if count > 6:
            break


@pytest.mark.parametrize("change", [shrink, KVCache.sleep])
def test_where_putting_back_is_refused_too_no_block_is_promised_that_lacks_its_memory(change):
    memory = FakeMemory()
    cache = KVCache(memory, make_layout())
    cache.commit(5)
    memory.fail_after, memory.refusals = 1, 2
    with pytest.raises(MemoryRefused, match="astray"):
        change(cache)
    assert cache.asleep or contents(cache, memory)  # reading what is not there is Fatal
    with pytest.raises(MemoryRefused, match="astray"):
        cache.wake() if cache.asleep else cache.commit(CAPACITY)
    cache.close()
    assert (memory.reserved, memory.granules) == ({}, {})


def test_two_threads_that_change_one_cache_at_once_take_turns():
    memory = FakeMemory(step_bytes=16)
    cache = KVCache(memory, make_layout())

    def come_and_go(most: int) -> None:
        for _ in range(50):
            cache.commit(most)
            cache.shrink(most // 2)

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(come_and_go, most) for most in (CAPACITY, CAPACITY - 1)]
    for thread in threads:
        thread.result()  # `Fatal` where two calls reach the memory at once
    expected = cache.layout.physical_bytes_for(cache.committed_blocks)
    assert cache.physical_bytes == memory.physical_bytes == expected

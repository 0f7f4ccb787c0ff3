"""Whichever call to the kernel is refused, the process's memory is as it was.

The n-th call is refused for every n; a refused populate has put memory behind the first half of its
range, as the kernel's own does.  What is compared comes from the kernel: the mappings of the range
in /proc/self/maps, the memory behind it in /proc/self/smaps, the process's VmRSS.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ullage.drivers import libc, procfs
from ullage.errors import MemoryRefused, OverAvailable
from ullage.kv.cache import KVCache
from ullage.kv.size import Layout, Segment
from ullage.units import KIB, MIB
from ullage.vmem.cpu import CpuMemory, kernel_capabilities

STRIDE = 6 * KIB  # blocks share pages
CAPACITY = 1000
BLOCKS = 600
LAYERS = 3
CALLS = ("protect", "advise", "remap_inaccessible", "zero")


@dataclass
class Kernel:
    """Lets `refuse_after` calls through and refuses the next one; None: lets all through."""

    refuse_after: int | None = None
    stock: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def call(self, name: str, address: int, size_bytes: int, *rest: int) -> None:
        if self.refuse_after == 0:
            self.refuse_after = None
            if rest == (libc.MADV_POPULATE_WRITE,):
                half_bytes = max(4096, size_bytes // 2 // 4096 * 4096)
                self.stock[name](address, half_bytes, *rest)
            raise MemoryRefused("refused on purpose")
        if self.refuse_after is not None:
            self.refuse_after -= 1
        self.stock[name](address, size_bytes, *rest)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()

    def replaced(name: str) -> Callable[..., None]:
        return lambda *arguments: made.call(name, *arguments)

    for name in CALLS:
        made.stock[name] = getattr(libc, name)
        monkeypatch.setattr(libc, name, replaced(name))
    return made


def layout() -> Layout:
    return Layout(
        size_bytes=LAYERS * CAPACITY * STRIDE,
        capacity_blocks=CAPACITY,
        segments=tuple(
            Segment(offset_bytes=layer * CAPACITY * STRIDE, stride_bytes=STRIDE)
            for layer in range(LAYERS)
        ),
        granularity_bytes=kernel_capabilities().granularity_bytes,
    )


@pytest.fixture
def make_cache() -> Iterator[Callable[[], KVCache]]:
    made: list[KVCache] = []

    def make(**how: Any) -> KVCache:
        # Small steps: one call to the kernel for each MiB.
        memory = CpuMemory(replace(kernel_capabilities(), step_bytes=MIB))
        made.append(KVCache(memory, layout(), **how))
        made[-1].commit(BLOCKS)
        return made[-1]

    yield make
    for cache in made:
        cache.close()


def mappings(cache: KVCache) -> list[tuple[int, int, str]]:
    """(first offset, last offset, access) of each mapping in the range, neighbours joined."""
    joined: list[tuple[int, int, str]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, *_ = line.split()
        start, stop = (int(each, 16) - cache.address for each in addresses.split("-"))
        start, stop = max(start, 0), min(stop, cache.layout.size_bytes)
        if start >= stop:
            continue
        if joined and joined[-1][1:] == (start, access):
            start = joined.pop()[0]
        joined.append((start, stop, access))
    return joined


def present_bytes(cache: KVCache) -> int:
    """Memory behind the range, as the kernel counts it page by page."""
    pages = cache.layout.size_bytes // 4096
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(cache.address // 4096 * 8)
        entries = file.read(pages * 8)
    return sum(entries[8 * page + 7] >> 7 for page in range(pages)) * 4096


@dataclass(frozen=True, kw_only=True)
class State:
    mappings: list[tuple[int, int, str]]
    present_bytes: int
    physical_bytes: int
    committed_blocks: int
    asleep: bool


def state(cache: KVCache) -> State:
    return State(
        mappings=mappings(cache),
        present_bytes=present_bytes(cache),
        physical_bytes=cache.physical_bytes,
        committed_blocks=cache.committed_blocks,
        asleep=cache.asleep,
    )


def rss_bytes() -> int:
    return procfs.status()["VmRSS"]


def grow(cache: KVCache) -> None:
    cache.commit(CAPACITY)


def shrink(cache: KVCache) -> None:
    cache.shrink(BLOCKS // 2)


@pytest.mark.parametrize("change", [grow, shrink, KVCache.sleep, KVCache.wake])
def test_whichever_call_to_the_kernel_is_refused_all_is_as_it_was(change, make_cache, kernel):
    refused = 0
    for count in itertools.count():
        cache = make_cache()
        if change is KVCache.wake:
            cache.sleep()
        before, before_bytes = state(cache), rss_bytes()
        kernel.refuse_after = count
        try:
            change(cache)
        except MemoryRefused:
            refused += 1
            assert state(cache) == before
            assert rss_bytes() == pytest.approx(before_bytes, abs=64 * KIB)
        if kernel.refuse_after is not None:  # there was no such call
            break
        change(cache)
        assert cache.physical_bytes == present_bytes(cache)
        cache.close()
    kernel.refuse_after = None
    assert refused >= LAYERS


def test_asleep_the_process_has_its_memory_back_and_awake_the_same_addresses_read_as_zeros(
    make_cache,
):
    cache = make_cache()
    address = cache.address
    addresses = [cache.segment_address(segment) for segment in cache.layout.segments]
    awake_bytes, committed_bytes = rss_bytes(), cache.physical_bytes
    cache.sleep()
    assert present_bytes(cache) == 0
    assert rss_bytes() == pytest.approx(awake_bytes - committed_bytes, abs=256 * KIB)
    cache.wake()
    assert (cache.address, cache.committed_blocks) == (address, BLOCKS)
    assert [cache.segment_address(segment) for segment in cache.layout.segments] == addresses
    assert present_bytes(cache) == cache.physical_bytes == committed_bytes


def test_a_wake_that_would_not_fit_half_way_leaves_nothing_behind(make_cache):
    left = itertools.repeat(1 << 40)
    cache = make_cache(available=lambda: next(left))
    cache.sleep()
    before = state(cache)
    left = itertools.chain(itertools.repeat(1 << 40, 4), itertools.repeat(0))
    with pytest.raises(OverAvailable):
        cache.wake()
    assert state(cache) == before
    left = itertools.repeat(1 << 40)
    cache.wake()
    assert present_bytes(cache) == cache.physical_bytes > 0


def test_what_is_committed_of_a_segment_is_one_mapping_also_where_it_grew_in_pieces(make_cache):
    """No piece of it is apart from the others: what a KV connector registers is one range."""
    cache = make_cache()
    for blocks in range(BLOCKS, CAPACITY, 37):
        cache.commit(blocks)
    lines = [
        [int(each, 16) for each in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.split()[1] == "rw-p"
    ]
    for segment in cache.layout.segments:
        start = cache.segment_address(segment)
        stop = start + cache.committed_blocks * STRIDE
        assert any(first <= start and stop <= last for first, last in lines)


def test_two_threads_that_change_one_cache_at_once_leave_what_the_last_one_asked_for(make_cache):
    cache = make_cache()

    def come_and_go(blocks: int) -> None:
        for _ in range(20):
            cache.commit(blocks)
            cache.shrink(blocks // 2)
            cache.sleep()
            cache.wake()

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(come_and_go, blocks) for blocks in (CAPACITY, BLOCKS)]
    refusals = [type(thread.exception()) for thread in threads]
    assert set(refusals) <= {type(None), ValueError}  # growing while the other has put it to sleep
    cache.wake()
    assert present_bytes(cache) == cache.physical_bytes
    assert cache.physical_bytes == cache.layout.physical_bytes_for(cache.committed_blocks)

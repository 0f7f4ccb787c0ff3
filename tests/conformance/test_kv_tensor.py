"""A range of addresses as a torch tensor: exactly the range, nothing copied, nothing owned."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator

import pytest

from ullage.kv.cache import KVCache
from ullage.kv.size import Layout, Segment
from ullage.vmem.cpu import CpuMemory

torch = pytest.importorskip("torch", reason="needs torch")

STRIDE = 6 * 1024
CAPACITY = 64


@pytest.fixture
def cache() -> Iterator[KVCache]:
    memory = CpuMemory()
    segments = tuple(
        Segment(offset_bytes=layer * STRIDE * CAPACITY, stride_bytes=STRIDE) for layer in range(3)
    )
    made = KVCache(
        memory,
        Layout(
            size_bytes=3 * STRIDE * CAPACITY,
            capacity_blocks=CAPACITY,
            segments=segments,
            granularity_bytes=memory.capabilities.granularity_bytes,
        ),
    )
    yield made
    made.close()


def flat(address: int, size_bytes: int, owner: object):
    from ullage.kv.tensor import flat as make

    return make(address, size_bytes, owner=owner)


def test_the_storage_is_exactly_the_range_also_when_the_range_has_no_memory(cache):
    whole = flat(cache.address, cache.layout.size_bytes, cache)
    assert whole.dtype is torch.int8
    assert whole.shape == (cache.layout.size_bytes,)
    assert whole.data_ptr() == whole.untyped_storage().data_ptr() == cache.address
    assert whole.untyped_storage().nbytes() == cache.layout.size_bytes


def test_a_view_of_a_segment_s_committed_blocks_has_a_storage_that_ends_with_them(cache):
    cache.commit(5)
    for segment in cache.layout.segments:
        view = flat(cache.segment_address(segment), 5 * STRIDE, cache)
        assert view.untyped_storage().nbytes() == 5 * STRIDE
        assert view.untyped_storage().data_ptr() == cache.segment_address(segment)
        assert int(view.count_nonzero()) == 0


def test_what_is_written_through_one_view_is_read_through_all(cache):
    cache.commit(2)
    whole = flat(cache.address, cache.layout.size_bytes, cache)
    part = flat(cache.address, 2 * STRIDE, cache)
    whole[7] = 42
    part.view(torch.bfloat16)[100] = 1.0
    assert part[7] == 42
    assert whole[200:202].view(torch.bfloat16)[0] == 1.0
    assert ctypes.string_at(cache.address + 7, 1) == b"\x2a"


def test_a_view_from_before_growth_reads_and_writes_what_grew(cache):
    whole = flat(cache.address, cache.layout.size_bytes, cache)
    whole[0] = 5
    cache.commit(CAPACITY)
    assert whole[0] == 5
    whole.fill_(3)
    assert int(whole.sum(dtype=torch.int64)) == 3 * cache.layout.size_bytes
    cache.shrink(1)
    cache.commit(CAPACITY)
    assert int(whole[STRIDE : STRIDE * CAPACITY].count_nonzero()) == 0
    assert whole.data_ptr() == cache.address


def test_the_owner_lives_as_long_as_the_tensor_or_any_view_of_it(cache):
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    tensor = flat(cache.address, STRIDE, owner)
    view = tensor[10:20].view(torch.int16)
    del owner, tensor
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None

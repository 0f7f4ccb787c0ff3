"""A region over memory that keeps exact books: what the region says is what is there."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.memory import PAGE, FakeMemory
from ullage.errors import OverAvailable
from ullage.vmem.extents import Extent
from ullage.vmem.region import Region

SIZE = 40 * PAGE

ranges = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(
        lambda ends: Extent(start=min(ends), stop=max(ends))
    ),
    max_size=4,
)


def pages(first: int, stop: int) -> Extent:
    return Extent(start=first * PAGE, stop=stop * PAGE)


def assert_books_agree(region: Region, memory: FakeMemory) -> None:
    committed = {
        region.address + offset
        for extent in region.committed
        for offset in range(extent.start, extent.stop, PAGE)
    }
    assert committed == set(memory.granules)
    assert region.physical_bytes == memory.physical_bytes


def test_a_region_has_addresses_and_no_memory():
    memory = FakeMemory()
    region = Region(memory, 3 * PAGE + 1)
    assert memory.reserved == {region.address: 4 * PAGE}
    assert (region.size_bytes, region.physical_bytes, region.committed) == (4 * PAGE, 0, ())


def test_a_range_gets_every_granule_that_it_touches_and_no_other():
    memory = FakeMemory()
    region = Region(memory, SIZE)
    region.commit(
        [Extent(start=PAGE - 1, stop=PAGE + 1), Extent(start=5 * PAGE, stop=5 * PAGE + 1)]
    )
    assert region.committed == (pages(0, 2), pages(5, 6))
    assert_books_agree(region, memory)


def test_an_empty_range_gets_no_memory_wherever_it_lies():
    region = Region(FakeMemory(), SIZE)
    region.commit([Extent(start=5, stop=5), Extent(start=PAGE, stop=PAGE)])
    assert region.physical_bytes == 0


def test_a_granule_that_two_ranges_share_is_committed_once():
    memory = FakeMemory()
    region = Region(memory, SIZE)
    region.commit([Extent(start=0, stop=PAGE // 2), Extent(start=PAGE // 2, stop=PAGE)])
    assert memory.steps == [(region.address, PAGE)]


@given(st.lists(st.tuples(st.booleans(), ranges), max_size=6))
def test_committed_is_the_union_of_what_was_asked_less_what_was_taken_away(calls):
    memory = FakeMemory()
    region = Region(memory, SIZE)
    expected: set[int] = set()
    for commits, extents in calls:
        if commits:
            region.commit(extents)
            expected |= {byte // PAGE for each in extents for byte in range(each.start, each.stop)}
        else:
            region.decommit(extents)
            removed = {byte for each in extents for byte in range(each.start, each.stop)}
            expected -= {
                page
                for page in range(SIZE // PAGE)
                if removed.issuperset(range(page * PAGE, (page + 1) * PAGE))
            }
        assert {(address - region.address) // PAGE for address in memory.granules} == expected
        assert_books_agree(region, memory)


def test_steps_end_on_multiples_of_the_step_size_and_cover_the_range_in_order():
    memory = FakeMemory(next_address=(1 << 20) + PAGE)
    region = Region(memory, SIZE)
    region.commit([pages(0, 12)])
    ends = [address + size for address, size in memory.steps]
    assert all(size <= memory.step_bytes for _, size in memory.steps)
    assert all(end % memory.step_bytes == 0 for end in ends[:-1])
    assert [address for address, _ in memory.steps] == [region.address, *ends[:-1]]
    assert ends[-1] == region.address + 12 * PAGE


def test_more_than_is_available_is_refused_before_anything_is_committed():
    memory = FakeMemory(limit_bytes=10 * PAGE)
    region = Region(memory, SIZE, available=memory.available)
    region.commit([pages(0, 4)])
    with pytest.raises(OverAvailable, match="are available"):
        region.commit([pages(0, 11)])
    assert len(memory.steps) == 1
    region.commit([pages(0, 10)])  # what is committed already does not count again
    assert region.physical_bytes == 10 * PAGE


@pytest.mark.parametrize(
    "outside", [Extent(start=-1, stop=1), Extent(start=0, stop=SIZE + 1), Extent(start=2, stop=1)]
)
def test_a_range_outside_the_region_is_refused(outside):
    memory = FakeMemory()
    region = Region(memory, SIZE)
    with pytest.raises(ValueError, match="outside"):
        region.commit([pages(0, 1), outside])
    assert memory.granules == {}


def test_only_whole_granules_are_taken_away():
    region = Region(FakeMemory(), SIZE)
    region.commit([pages(0, 4)])
    region.decommit([Extent(start=1, stop=3 * PAGE - 1), Extent(start=3 * PAGE, stop=4 * PAGE - 1)])
    assert region.committed == (pages(0, 1), pages(2, 4))


def test_closing_gives_everything_back_and_doing_it_twice_changes_nothing():
    memory = FakeMemory()
    region = Region(memory, SIZE)
    region.commit([pages(0, 4)])
    region.close()
    region.close()
    assert (memory.reserved, memory.granules, region.physical_bytes) == ({}, {}, 0)


def test_a_closed_region_touches_addresses_no_more_that_may_be_another_s_by_now():
    region = Region(FakeMemory(), SIZE)
    region.close()
    with pytest.raises(ValueError, match="closed"):
        region.commit([pages(0, 1)])
    with pytest.raises(ValueError, match="closed"):
        region.zero(pages(0, 1))
    region.decommit([pages(0, 1)])  # nothing is committed, so nothing is to be done


def test_a_region_that_nobody_refers_to_is_given_back():
    memory = FakeMemory()
    region = Region(memory, 4 * memory.capabilities.granularity_bytes)
    region.commit([Extent(start=0, stop=1)])
    del region
    gc.collect()
    assert (memory.reserved, memory.physical_bytes) == ({}, 0)

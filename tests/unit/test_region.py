"""A region over memory that keeps exact books: what the region says is what is there."""

from __future__ import annotations

import gc
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.memory import PAGE, FakeMemory
from ullage.errors import MemoryRefused, OverAvailable, Unreadable
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


def fail_everywhere(first, second):
    """Run `second` after `first` with its 1st, 2nd, ... primitive refused, until none is left.

    Yields region, memory, and the granules before `second`, for each refusal.
    """
    for count in itertools.count():
        memory = FakeMemory()
        region = Region(memory, SIZE)
        first(region)
        for granule in memory.granules:
            memory.write(granule, b"live")
        before = {address: bytes(content) for address, content in memory.granules.items()}
        memory.fail_after = count
        try:
            second(region)
        except MemoryRefused:
            yield region, memory, before
        else:
            assert count > 0
            memory.fail_after = None  # giving back what is dropped is no part of the story
            return


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


def test_a_refusal_at_any_step_leaves_memory_contents_and_books_as_they_were():
    refused = 0
    wanted = [pages(0, 11), pages(13, 14), pages(20, 33)]
    for region, memory, before in fail_everywhere(
        lambda region: region.commit([pages(2, 4), pages(22, 23)]),
        lambda region: region.commit(wanted),
    ):
        refused += 1
        assert memory.granules == before
        assert region.committed == (pages(2, 4), pages(22, 23))
        region.commit(wanted)  # a refusal is no reason why it could not work later
        assert region.committed == (pages(0, 11), pages(13, 14), pages(20, 33))
        assert_books_agree(region, memory)
    assert refused >= 8


def test_a_refusal_while_memory_is_taken_away_leaves_books_that_say_what_is_there():
    for region, memory, _ in fail_everywhere(
        lambda region: region.commit([pages(0, 3), pages(5, 8), pages(10, 12)]),
        lambda region: region.decommit([pages(0, 40)]),
    ):
        assert_books_agree(region, memory)


def test_more_than_is_available_is_refused_before_anything_is_committed():
    memory = FakeMemory(limit_bytes=10 * PAGE)
    region = Region(memory, SIZE, available=memory.available)
    region.commit([pages(0, 4)])
    with pytest.raises(OverAvailable, match="are available"):
        region.commit([pages(0, 11)])
    assert len(memory.steps) == 1
    region.commit([pages(0, 10)])  # what is committed already does not count again
    assert region.physical_bytes == 10 * PAGE


@pytest.mark.parametrize("looks", range(1, 8))
def test_when_others_take_memory_between_two_steps_all_is_as_before(looks):
    memory = FakeMemory()
    region = Region(memory, SIZE, available=lambda: next(answers))
    answers = itertools.repeat(SIZE)
    region.commit([pages(1, 2)])
    memory.write(region.address + PAGE, b"live")
    answers = itertools.chain(itertools.repeat(SIZE, looks), itertools.repeat(PAGE - 1))
    with pytest.raises(OverAvailable):
        region.commit([pages(0, 30)])
    assert region.committed == (pages(1, 2),)
    assert_books_agree(region, memory)
    assert memory.read(region.address + PAGE, 4) == b"live"


def test_when_available_can_no_longer_be_read_all_is_as_before():
    memory = FakeMemory()
    answers = iter([SIZE, SIZE])

    def available() -> int:
        for answer in answers:
            return answer
        raise Unreadable("gone")

    region = Region(memory, SIZE, available=available)
    with pytest.raises(Unreadable):
        region.commit([pages(0, 30)])
    assert region.physical_bytes == memory.physical_bytes == 0


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


def test_when_undoing_is_refused_too_the_books_still_say_what_is_there():
    class Stubborn(FakeMemory):
        def decommit(self, address: int, size_bytes: int) -> None:
            if address == region.address:
                raise MemoryRefused("refused on purpose")
            super().decommit(address, size_bytes)

    memory = Stubborn()
    region = Region(memory, SIZE, available=lambda: next(answers))
    answers = itertools.chain(itertools.repeat(SIZE, 3), itertools.repeat(0))
    with pytest.raises(MemoryRefused, match="on purpose"):
        region.commit([pages(0, 30)])
    assert region.physical_bytes > 0
    assert_books_agree(region, memory)


def test_a_region_that_nobody_refers_to_is_given_back():
    memory = FakeMemory()
    region = Region(memory, 4 * memory.capabilities.granularity_bytes)
    region.commit([Extent(start=0, stop=1)])
    del region
    gc.collect()
    assert (memory.reserved, memory.physical_bytes) == ({}, 0)

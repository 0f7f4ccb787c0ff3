"""A region whose changes are refused half way, over memory that keeps exact books."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from fakes.memory import PAGE, FakeMemory
from ullage.errors import MemoryRefused, OverAvailable, Unreadable
from ullage.vmem.extents import Extent
from ullage.vmem.region import Region

SIZE = 40 * PAGE


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


@contextmanager
def refusing(memory: FakeMemory, *, after: int, refusals: int) -> Iterator[None]:
    """What happens inside is refused, and undoing it too."""
    memory.fail_after, memory.refusals = after, refusals
    with pytest.raises(MemoryRefused, match="bytes are astray"):
        yield
    memory.fail_after, memory.refusals = None, 1


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


def test_a_refusal_while_memory_is_taken_away_puts_back_what_was_taken_and_it_reads_as_zeros():
    wanted = [pages(0, 3), pages(5, 20), pages(22, 24)]
    refused = 0
    for region, memory, before in fail_everywhere(
        lambda region: region.commit(wanted),
        lambda region: region.decommit([pages(0, 40)]),
    ):
        taken = sum(content == bytes(PAGE) for content in memory.granules.values())
        assert taken == sum(extent.size_bytes for extent in wanted[:refused]) // PAGE
        assert set(memory.granules) == set(before)
        assert region.committed == tuple(wanted)
        assert_books_agree(region, memory)
        region.decommit([pages(0, 40)])  # a refusal is no reason why it could not work later
        assert memory.granules == {}
        refused += 1
    assert refused == 3


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


@pytest.mark.parametrize("refusals", range(2, 12))
def test_when_undoing_is_refused_too_the_error_counts_what_is_astray(refusals):
    memory = FakeMemory(step_bytes=PAGE)
    region = Region(memory, SIZE)
    with refusing(memory, after=5, refusals=refusals):  # the sixth step, and undoings of six
        region.commit([pages(0, 20)])
    astray_pages = min(refusals - 1, 6)
    assert region.astray_bytes == astray_pages * PAGE == memory.physical_bytes
    with pytest.raises(MemoryRefused, match=f" {region.astray_bytes} bytes are astray"):
        region.commit([pages(0, 1)])


@pytest.mark.parametrize("refusals", range(2, 8))
def test_when_putting_back_is_refused_too_the_error_counts_what_is_missing(refusals):
    memory = FakeMemory(step_bytes=PAGE)
    region = Region(memory, SIZE)
    wanted = [pages(0, 5), pages(6, 7)]
    region.commit(wanted)
    with refusing(memory, after=1, refusals=refusals):
        region.decommit(wanted)
    assert region.astray_bytes == min(refusals - 1, 5) * PAGE
    assert region.physical_bytes == 6 * PAGE - region.astray_bytes


def test_without_room_to_put_back_what_was_taken_the_kernel_is_not_asked():
    memory = FakeMemory()
    region = Region(memory, SIZE, available=lambda: room)
    room = SIZE
    region.commit([pages(0, 5), pages(6, 7)])
    room = 0
    memory.fail_after = 1
    with pytest.raises(MemoryRefused, match=f" {5 * PAGE} bytes are astray"):
        region.decommit([pages(0, 7)])
    assert region.committed == (pages(6, 7),)
    assert_books_agree(region, memory)


def test_with_bytes_astray_a_region_gives_memory_back_and_takes_none():
    memory = FakeMemory()
    region = Region(memory, SIZE)
    region.commit([pages(20, 21)])
    with refusing(memory, after=1, refusals=2):
        region.commit([pages(0, 16)])
    with pytest.raises(MemoryRefused, match="astray"):
        region.commit([pages(30, 31)])
    region.decommit([pages(20, 21)])
    assert pages(20, 21) not in region.committed
    region.close()
    assert (memory.reserved, memory.granules) == ({}, {})


def test_two_threads_that_commit_and_take_away_at_once_take_turns():
    memory = FakeMemory(step_bytes=PAGE)
    region = Region(memory, SIZE)

    def come_and_go(own: Extent, shared: Extent) -> None:
        for _ in range(50):
            region.commit([own, shared])
            region.decommit([shared])

    with ThreadPoolExecutor(2) as pool:
        threads = [
            pool.submit(come_and_go, own, pages(10, 30)) for own in (pages(0, 5), pages(30, 40))
        ]
    for thread in threads:
        thread.result()  # `Fatal` where two calls reach the memory at once
    assert region.committed == (pages(0, 5), pages(30, 40))
    assert_books_agree(region, memory)

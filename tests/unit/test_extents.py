"""Extents are sets of bytes: every operation does to them what it does to sets of ints."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ullage.vmem.extents import Extent, covered_bytes, merged, without

extents = st.lists(st.builds(Extent, start=st.integers(0, 60), stop=st.integers(0, 60)), max_size=8)


def bytes_of(some: object) -> set[int]:
    return {byte for each in some for byte in range(each.start, each.stop)}  # type: ignore[attr-defined]


def is_canonical(some: tuple[Extent, ...]) -> bool:
    """Sorted, none empty, and no two touch."""
    return all(each.size_bytes > 0 for each in some) and all(
        before.stop < after.start for before, after in pairwise(some)
    )


@given(extents)
def test_merging_keeps_every_byte_and_leaves_gaps_between_extents(some):
    assert bytes_of(merged(some)) == bytes_of(some)
    assert is_canonical(merged(some))


@given(extents)
def test_merging_twice_is_merging_once(some):
    assert merged(merged(some)) == merged(some)


@given(extents, extents)
def test_what_is_left_without_others_is_the_difference_of_the_sets(some, removed):
    left = without(some, removed)
    assert bytes_of(left) == bytes_of(some) - bytes_of(removed)
    assert is_canonical(left)


@given(extents)
def test_bytes_that_overlap_are_covered_once(some):
    assert covered_bytes(some) == len(bytes_of(some))


@given(extents, extents)
def test_taking_away_and_putting_back_gives_the_union(some, others):
    assert merged((*without(some, others), *others)) == merged((*some, *others))

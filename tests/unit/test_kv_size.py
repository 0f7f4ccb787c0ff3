"""How much memory n blocks take, and how many fit: held to a count of granules one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.kv.size import Layout, Placement, Segment, layout
from ullage.units import KIB, MIB

GRANULE = 2 * MIB


def placed(
    *strides: int, capacity: int, layers: int = 1, block_outermost: bool = False
) -> list[Placement]:
    """A group of `layers` same-shaped layers for each stride, one group after the other."""
    placements = []
    offset = 0
    for group, stride in enumerate(strides):
        placements.append(
            Placement(
                layers=tuple(f"group{group}.layer{index}" for index in range(layers)),
                offset_bytes=offset,
                layer_stride_bytes=stride if block_outermost else stride * capacity,
                block_stride_bytes=stride * layers if block_outermost else stride,
            )
        )
        offset += stride * capacity * layers
    return placements


def of_strides(*strides: int, capacity: int, granule: int = GRANULE, layers: int = 1) -> Layout:
    return layout(
        placed(*strides, capacity=capacity, layers=layers),
        size_bytes=sum(strides) * capacity * layers,
        capacity_blocks=capacity,
        granularity_bytes=granule,
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any strides, so that granules straddle blocks and segments, and segments fit in granules."""
    strides = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    return of_strides(
        *strides,
        capacity=draw(st.integers(1, 20)),
        granule=draw(st.sampled_from([1, 2, 16, 64])),
        layers=draw(st.integers(1, 3)),
    )


def touched_granules(some: Layout, blocks: int) -> set[int]:
    return {
        byte // some.granularity_bytes
        for segment in some.segments
        for byte in range(
            segment.offset_bytes, segment.offset_bytes + blocks * segment.stride_bytes
        )
    }


@given(layouts(), st.integers(0, 20))
def test_physical_bytes_are_the_granules_that_the_blocks_touch(some, blocks):
    blocks = min(blocks, some.capacity_blocks)
    expected = len(touched_granules(some, blocks)) * some.granularity_bytes
    assert some.physical_bytes_for(blocks) == expected


@given(layouts())
def test_more_blocks_never_take_less(some):
    sizes = [some.physical_bytes_for(n) for n in range(some.capacity_blocks + 1)]
    assert sizes == sorted(sizes)


@given(layouts(), st.integers(-10, 5000))
def test_blocks_within_is_the_most_that_fits(some, memory_bytes):
    fitting = [
        n for n in range(some.capacity_blocks + 1) if some.physical_bytes_for(n) <= memory_bytes
    ]
    assert some.blocks_within(memory_bytes) == max(fitting, default=0)


@given(layouts())
def test_segments_tile_the_allocation_without_gap_or_overlap(some):
    ends = [each.offset_bytes + each.stride_bytes * some.capacity_blocks for each in some.segments]
    assert [each.offset_bytes for each in some.segments] == [0, *ends[:-1]]
    assert ends[-1] == some.size_bytes == some.block_bytes * some.capacity_blocks


def test_one_granule_for_each_segment_holds_exactly_the_blocks_that_fill_it():
    some = of_strides(64 * KIB, capacity=128, layers=3)
    budget = 3 * GRANULE
    assert some.physical_bytes_for(32) == budget
    assert some.blocks_within(budget) == 32
    assert some.blocks_within(budget + 1) == 32
    assert some.blocks_within(budget - 1) == 0
    assert some.physical_bytes_for(33) == 2 * budget
    assert some.blocks_within(2 * budget) == 64


def test_layers_apart_are_a_segment_each():
    some = of_strides(64 * KIB, capacity=8, layers=3)
    assert [each.offset_bytes for each in some.segments] == [0, 512 * KIB, 1024 * KIB]
    assert some.block_bytes == 3 * 64 * KIB


def test_blocks_of_all_layers_together_are_one_segment():
    some = layout(
        placed(64 * KIB, capacity=8, layers=3, block_outermost=True),
        size_bytes=8 * 3 * 64 * KIB,
        capacity_blocks=8,
        granularity_bytes=GRANULE,
    )
    assert some.segments == (Segment(offset_bytes=0, stride_bytes=3 * 64 * KIB),)
    assert some.block_bytes == 3 * 64 * KIB


def test_layers_with_pages_of_their_own_keep_their_strides():
    some = of_strides(64 * KIB, 96 * KIB, capacity=8, layers=2)
    assert [each.stride_bytes for each in some.segments] == [64 * KIB] * 2 + [96 * KIB] * 2
    assert some.block_bytes == 2 * (64 + 96) * KIB


def test_groups_that_share_the_same_bytes_count_once():
    twice = placed(64 * KIB, 96 * KIB, capacity=8) * 2
    some = layout(twice, size_bytes=8 * 160 * KIB, capacity_blocks=8, granularity_bytes=GRANULE)
    assert len(some.segments) == 2


def test_a_size_that_is_no_whole_number_of_segments_is_refused():
    with pytest.raises(ValueError, match="no whole number of segments"):
        layout(placed(64, capacity=8), size_bytes=513, capacity_blocks=8, granularity_bytes=16)


@pytest.mark.parametrize(("size_bytes", "stride"), [(0, 64), (512, 0)])
def test_a_cache_without_a_byte_is_refused(size_bytes, stride):
    with pytest.raises(ValueError, match="no whole number of segments"):
        layout(
            placed(stride, capacity=8),
            size_bytes=size_bytes,
            capacity_blocks=8,
            granularity_bytes=16,
        )


def test_layers_at_one_offset_with_different_strides_are_refused():
    aliased = [*placed(64, capacity=8), *placed(96, capacity=8)]
    with pytest.raises(ValueError, match="alias offset 0 with different block strides"):
        layout(aliased, size_bytes=8 * 160, capacity_blocks=8, granularity_bytes=16)


def test_different_strides_with_blocks_of_all_layers_together_are_refused():
    together = [
        Placement(layers=("a",), offset_bytes=0, layer_stride_bytes=64, block_stride_bytes=160),
        Placement(layers=("b",), offset_bytes=64, layer_stride_bytes=96, block_stride_bytes=96),
    ]
    with pytest.raises(ValueError, match=r"do not tile.*layer-outermost"):
        layout(together, size_bytes=8 * 160, capacity_blocks=8, granularity_bytes=16)


def test_an_allocation_larger_than_its_layers_is_refused():
    with pytest.raises(ValueError, match="do not tile the allocation: at 1280 of 1281"):
        layout(placed(64, 96, capacity=8), size_bytes=1281, capacity_blocks=8, granularity_bytes=16)

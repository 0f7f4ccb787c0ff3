"""Several ranks share one budget: all of them get equally many blocks, and together they fit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.snapshot import Snapshot, snapshot
from ullage.devices.base import MemoryParts, ProcessReading, Reading
from ullage.kv.size import Layout, Segment, blocks_within
from ullage.units import GIB, KIB, MIB
from ullage.vllm_plugin.decision import KV_CACHE, LEFT_OVER, Decision, Part, decide

PAGE = 4 * KIB


def make_layout(*, stride: int, layers: int, capacity: int) -> Layout:
    return Layout(
        size_bytes=stride * layers * capacity,
        capacity_blocks=capacity,
        segments=tuple(
            Segment(offset_bytes=layer * stride * capacity, stride_bytes=stride)
            for layer in range(layers)
        ),
        granularity_bytes=PAGE,
    )


def make_part(pid: int, layout: Layout, *, committed: int = 0, transient: int = 0) -> Part:
    return Part(pid=pid, layout=layout, committed_bytes=committed, transient_bytes=transient)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """As pipeline stages have them: different numbers of layers, strides off the granule."""
    return make_layout(
        stride=draw(st.integers(1, 64)) * KIB,
        layers=draw(st.integers(1, 8)),
        capacity=draw(st.integers(1, 4000)),
    )


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    amounts = st.integers(0, GIB)
    return [
        make_part(100 + rank, layout, committed=draw(amounts), transient=draw(amounts))
        for rank, layout in enumerate(draw(st.lists(layouts(), min_size=1, max_size=4)))
    ]


def taken(own: list[Part], *, total: int, each_bytes: int = GIB) -> Snapshot:
    """Every rank's process has `each_bytes`, and its committed bytes beside them."""
    sizes = {part.pid: each_bytes + part.committed_bytes for part in own}
    reading = Reading(
        source="cgroup2:/",
        scope="group",
        total_bytes=total,
        used_bytes=sum(sizes.values()),
        parts=MemoryParts(anon_bytes=sum(sizes.values()), shmem_bytes=0, kernel_bytes=0),
    )
    processes = [
        ProcessReading(
            pid=pid,
            ppid=1,
            name=f"VLLM::Worker_TP{pid}",
            start_time_ticks=1,
            anon_bytes=size_bytes,
            shmem_bytes=0,
            file_bytes=0,
            source="smaps_rollup",
        )
        for pid, size_bytes in sizes.items()
    ]
    return snapshot(readings=[reading], processes=processes, taken_at_s=0.0)


def decided(own: list[Part], moment: Snapshot, *, utilization: float | None = None) -> Decision:
    return decide(
        snapshot=moment,
        parts=own,
        later_bytes=48 * MIB,
        margin_bytes=128 * MIB,
        utilization=utilization,
    )


def together_bytes(own: list[Part], blocks: int) -> int:
    return sum(part.layout.physical_bytes_for(blocks) for part in own)


@given(parts(), st.integers(4 * GIB, 64 * GIB), st.none() | st.floats(0.05, 1.0))
def test_all_ranks_together_fit_and_one_more_block_in_each_would_not(own, total, utilization):
    decision = decided(own, taken(own, total=total), utilization=utilization)
    assert decision.kv_bytes == together_bytes(own, decision.blocks)
    assert decision.kv_bytes <= decision.budget.kv_bytes
    if decision.blocks < min(part.layout.capacity_blocks for part in own):
        assert together_bytes(own, decision.blocks + 1) > decision.budget.kv_bytes


@given(layouts(), st.integers(0, 2 * GIB))
def test_one_rank_has_what_it_had_alone(layout, memory_bytes):
    blocks = blocks_within([layout], memory_bytes)
    assert blocks == layout.blocks_within(memory_bytes)
    assert blocks == max(
        n
        for n in (0, blocks, blocks + 1)
        if n <= layout.capacity_blocks and layout.physical_bytes_for(n) <= memory_bytes
    )


@given(parts(), st.integers(4 * GIB, 64 * GIB), st.randoms())
def test_the_order_of_the_ranks_changes_nothing_but_the_names(own, total, random):
    moment = taken(own, total=total)
    shuffled = random.sample(own, len(own))
    assert decided(own, moment).blocks == decided(shuffled, moment).blocks


@given(parts(), st.integers(4 * GIB, 64 * GIB))
def test_every_rank_has_a_line_and_all_lines_are_the_total(own, total):
    decision = decided(own, taken(own, total=total))
    sizes = {line.name: line.size_bytes or 0 for line in decision.ledger.lines}
    names = [KV_CACHE] if len(own) == 1 else [f"{KV_CACHE} of rank {n}" for n in range(len(own))]
    assert [sizes[name] for name in names] == [
        part.layout.physical_bytes_for(decision.blocks) for part in own
    ]
    assert all(sizes[f"VLLM::Worker_TP{part.pid} ({part.pid})"] == GIB for part in own)
    assert sum(sizes.values()) + decision.ledger.residual_bytes == total


def test_peaks_add_up_and_margin_and_fraction_are_the_engine_s_once():
    layout = make_layout(stride=48 * KIB, layers=4, capacity=100_000)
    own = [make_part(pid, layout, transient=200 * MIB) for pid in (1, 2)]
    decision = decided(own, taken(own, total=8 * GIB))
    assert decision.budget.kv_bytes == 6 * GIB - (2 * 200 + 48 + 128) * MIB
    half = decided(own, taken(own, total=8 * GIB), utilization=0.5)
    assert half.budget.kv_bytes == 4 * GIB - 2 * GIB - (2 * 200 + 48) * MIB


def test_what_two_equal_ranks_leave_is_less_than_one_more_block_of_both():
    layout = make_layout(stride=48 * KIB, layers=4, capacity=100_000)
    own = [make_part(pid, layout) for pid in (1, 2)]
    decision = decided(own, taken(own, total=8 * GIB))
    (left,) = [line.size_bytes for line in decision.ledger.lines if line.name == LEFT_OVER]
    assert left is not None
    assert left < 2 * layout.block_bytes
    smaller = [own[0], replace(own[1], layout=make_layout(stride=48 * KIB, layers=4, capacity=9))]
    assert decided(smaller, taken(smaller, total=8 * GIB)).blocks == 9, "a rank has no more"

"""From a snapshot to a number of blocks: nothing is lost on the way, to the byte."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.exact import WorkingSet
from ullage.accounting.leases import STEADY_BYTES, Promise
from ullage.accounting.snapshot import Snapshot, snapshot
from ullage.budget import default_margin_bytes
from ullage.devices.base import MemoryParts, ProcessReading, Reading
from ullage.drivers.malloc import Heap
from ullage.kv.size import Layout, Segment
from ullage.units import GIB, KIB, MIB
from ullage.vllm_plugin.decision import (
    KV_CACHE,
    LEFT_OVER,
    LEFT_OVER_BY_SHARE,
    LEFT_OVER_BY_UTILIZATION,
    Decision,
    Part,
    decide,
    why_nothing_fits,
)

WORKER = 77
PAGE = 4 * KIB


def make_layout(total: int, stride: int = 48 * KIB, layers: int = 4) -> Layout:
    """Capacity for all of `total`, as the plugin reserves it."""
    capacity = total // (stride * layers) + 1
    return Layout(
        size_bytes=stride * layers * capacity,
        capacity_blocks=capacity,
        segments=tuple(
            Segment(offset_bytes=layer * stride * capacity, stride_bytes=stride)
            for layer in range(layers)
        ),
        granularity_bytes=PAGE,
    )


def process(pid: int, anon: int | None, shmem: int | None = 0) -> ProcessReading:
    return ProcessReading(
        pid=pid,
        ppid=1,
        name="VLLM::Worker",
        start_time_ticks=1,
        anon_bytes=anon,
        shmem_bytes=shmem,
        file_bytes=0,
        source="smaps_rollup",
    )


def container(total: int, own: int, others: int = 0, files: int = 0, mapped: int = 0) -> Reading:
    return Reading(
        source="cgroup2:/",
        scope="group",
        total_bytes=total,
        used_bytes=own + others + files,
        parts=MemoryParts(
            anon_bytes=own + others,
            shmem_bytes=0,
            inactive_file_bytes=files,
            active_file_bytes=0,
            mapped_file_bytes=mapped,
            dirty_bytes=0,
            writeback_bytes=0,
            kernel_bytes=0,
        ),
    )


def take(
    reading: Reading, processes: list[ProcessReading], working_set: WorkingSet | None = None
) -> Snapshot:
    return snapshot(
        readings=[reading], processes=processes, taken_at_s=0.0, working_set=working_set
    )


def decided(
    taken: Snapshot,
    *,
    committed: int = 0,
    transient: int = 0,
    later: int = 0,
    margin: int | None = 0,
    utilization: float | None = None,
    heap: Heap | None = None,
    at_start: int | None = None,
    promise: Promise | None = None,
) -> Decision:
    part = Part(
        pid=WORKER,
        layout=make_layout(taken.total_bytes),
        committed_bytes=committed,
        transient_bytes=transient,
        heap=heap,
    )
    return decide(
        snapshot=taken,
        parts=[part],
        later_bytes=later,
        margin_bytes=margin,
        utilization=utilization,
        limit_at_start_bytes=at_start,
        promise=promise,
    )


def glibc(in_use: int, free: int, present: int) -> Heap:
    return Heap(allocator="glibc", in_use_bytes=in_use, free_bytes=free, present_bytes=present)


def sizes(decision: Decision) -> dict[str, int | None]:
    return {line.name: line.size_bytes for line in decision.ledger.lines}


@st.composite
def decisions(
    draw: st.DrawFn, *, least_total: int = 1, most: int = 16 * GIB
) -> tuple[Snapshot, int, Decision]:
    """A snapshot, the bytes committed in it, and what was decided.  `most`: of each part."""
    amounts = st.integers(0, most)
    committed = draw(st.integers(0, GIB))
    worker = committed + draw(amounts)
    frontend = draw(amounts)
    files = draw(amounts)
    reading = container(
        draw(st.integers(least_total, 64 * GIB)),
        worker + frontend,
        draw(amounts),
        files,
        draw(st.integers(0, files)),
    )
    working_set = draw(
        st.none() | st.builds(WorkingSet, mapped_bytes=amounts, referenced_bytes=amounts)
    )
    taken = take(reading, [process(1, frontend), process(WORKER, worker)], working_set)
    decision = decided(
        taken,
        committed=committed,
        transient=draw(amounts),
        later=draw(amounts),
        margin=draw(st.none() | amounts),
        utilization=draw(st.none() | st.floats(0.05, 1.0)),
        heap=draw(st.none() | st.builds(glibc, amounts, amounts, amounts)),
    )
    return taken, committed, decision


@given(decisions())
def test_lines_and_residual_are_the_total_and_no_line_is_negative(drawn):
    taken, _, decision = drawn
    ledger = decision.ledger
    assert sum(line.size_bytes or 0 for line in ledger.lines) + ledger.residual_bytes == (
        taken.total_bytes
    )
    assert all(line.size_bytes is None or line.size_bytes >= 0 for line in ledger.lines)


@given(decisions())
def test_deciding_moves_bytes_between_lines_and_makes_none(drawn):
    taken, committed, decision = drawn
    deducted = sum(line.size_bytes or 0 for line in decision.budget.deductions)
    missing = decision.kv_bytes + deducted - taken.available_bytes - committed
    # Where more must be kept free than there is, what is missing is all that the residual gains.
    assert decision.ledger.residual_bytes == taken.ledger.residual_bytes - max(0, missing)


@given(decisions())
def test_the_blocks_fit_and_one_more_would_not(drawn):
    taken, _, decision = drawn
    layout = make_layout(taken.total_bytes)
    assert decision.blocks >= 0
    assert decision.kv_bytes == layout.physical_bytes_for(decision.blocks)
    assert decision.kv_bytes <= decision.budget.kv_bytes
    if decision.blocks < layout.capacity_blocks:
        assert layout.physical_bytes_for(decision.blocks + 1) > decision.budget.kv_bytes


@given(decisions(least_total=16 * GIB, most=GIB))  # there is room for all of it
def test_what_is_left_over_is_named_by_what_bound_and_is_less_than_a_block_if_memory_did(drawn):
    taken, _, decision = drawn
    left = sizes(decision)
    if decision.budget.bound == "utilization":
        assert LEFT_OVER not in left
        return
    assert LEFT_OVER_BY_UTILIZATION not in left
    layout = make_layout(taken.total_bytes)
    assert decision.blocks < layout.capacity_blocks
    following = layout.physical_bytes_for(decision.blocks + 1) - decision.kv_bytes
    assert (left[LEFT_OVER] or 0) < following


def test_a_start_line_by_line():
    reading = container(4 * GIB, 1500 * MIB, 100 * MIB, files=400 * MIB, mapped=150 * MIB)
    taken = take(reading, [process(1, 300 * MIB), process(WORKER, 1200 * MIB)])
    decision = decided(taken, committed=MIB, transient=200 * MIB, later=48 * MIB, margin=None)
    available = 4096 - 1600 - 150  # MiB
    assert taken.available_bytes == available * MIB
    budget_bytes = (available + 1 - 200 - 48 - 64) * MIB
    assert decision.budget.kv_bytes == budget_bytes
    assert decision.blocks == budget_bytes // (192 * KIB)
    assert decision.kv_bytes == decision.blocks * 192 * KIB
    assert sizes(decision) == {
        "VLLM::Worker (1)": 300 * MIB,
        "VLLM::Worker (77)": 1199 * MIB,
        "other processes": 100 * MIB,
        "kernel memory": 0,
        "file pages, mapped and in use": 150 * MIB,
        "file pages, dirty or written back": 0,
        "transient peak of the largest step": 200 * MIB,
        "still to come in the engine's processes": 48 * MIB,
        "margin": 64 * MIB,
        KV_CACHE: decision.kv_bytes,
        LEFT_OVER: budget_bytes - decision.kv_bytes,
    }
    assert decision.ledger.residual_bytes == 0


def test_an_explicit_fraction_bounds_the_engine_s_use_of_the_total():
    taken = take(container(8 * GIB, GIB), [process(WORKER, GIB)])
    decision = decided(taken, utilization=0.5)
    assert decision.budget.bound == "utilization"
    assert 3 * GIB - MIB < decision.kv_bytes <= 3 * GIB
    assert sizes(decision)[LEFT_OVER_BY_UTILIZATION] == 7 * GIB - decision.kv_bytes


def test_what_is_committed_already_changes_nothing():
    bare = decided(take(container(8 * GIB, GIB), [process(WORKER, GIB)]))
    more = GIB + 100 * MIB
    taken = take(container(8 * GIB, more), [process(WORKER, more)])
    grown = decided(taken, committed=100 * MIB)
    assert (grown.blocks, sizes(grown)) == (bare.blocks, sizes(bare))
    fractional = [
        decided(taken, committed=100 * MIB, utilization=0.5).blocks,
        decided(take(container(8 * GIB, GIB), [process(WORKER, GIB)]), utilization=0.5).blocks,
    ]
    assert fractional[0] == fractional[1]


def test_where_nothing_fits_there_are_no_blocks_and_the_residual_says_what_is_missing():
    taken = take(container(2 * GIB, GIB), [process(WORKER, GIB)])
    decision = decided(taken, transient=3 * GIB)
    assert (decision.blocks, decision.kv_bytes) == (0, 0)
    assert decision.ledger.residual_bytes == -2 * GIB


def test_without_a_margin_of_the_user_s_the_default_is_kept():
    taken = take(container(64 * GIB, GIB), [process(WORKER, GIB)])
    assert sizes(decided(taken, margin=None))["margin"] == default_margin_bytes(64 * GIB)


def test_a_worker_of_unknown_size_keeps_its_line():
    taken = take(container(8 * GIB, GIB), [replace(process(WORKER, None), source=None)])
    decision = decided(taken, committed=MIB)
    assert sizes(decision)["VLLM::Worker (77)"] is None
    assert decision.blocks > 0


def test_deciding_loads_neither_vllm_nor_torch():
    code = (
        "import sys, ullage.vllm_plugin.decision, ullage.vllm_plugin.eligible, "
        "ullage.vllm_plugin.observe, ullage.vllm_plugin.settings, ullage.vllm_plugin.versions;"
        "print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout == "[]\n"


def test_an_own_process_that_cannot_be_read_never_loosens_the_fraction():
    """The whole group's memory stands in for it, which is not less."""
    reading = container(8 * GIB, 3 * GIB)
    known = decided(take(reading, [process(1, GIB), process(WORKER, 2 * GIB)]), utilization=0.5)
    unknown = decided(take(reading, [process(1, None), process(WORKER, 2 * GIB)]), utilization=0.5)
    assert unknown.blocks == known.blocks


def test_what_is_missing_for_the_least_cache_is_said_with_a_size_that_would_do():
    taken = take(container(2 * GIB, GIB), [process(WORKER, GIB)])
    decision = decided(taken, transient=3 * GIB)
    text = why_nothing_fits(decision, GIB, block_tokens=128, request_blocks=1)
    assert "4.00 GiB are missing for the 2.00 GiB of one request" in text
    assert text.endswith("Raise the memory limit by 4.00 GiB or more.")
    roomier = take(container(6 * GIB, GIB), [process(WORKER, GIB)])
    assert decided(roomier, transient=3 * GIB).budget.kv_bytes == 2 * GIB


def test_where_the_fraction_binds_the_way_out_is_the_fraction():
    decision = decided(take(container(8 * GIB, GIB), [process(WORKER, GIB)]), utilization=0.1)
    text = why_nothing_fits(decision, GIB, block_tokens=128, request_blocks=2)
    assert re.search(
        r"Raise --gpu-memory-utilization by 0\.40 or more, or by 0\.28 with --max-model-len 128\.$",
        text,
    ), text


def test_what_would_do_for_the_longest_request_does_and_less_for_one_of_a_block():
    decision = decided(take(container(4 * GIB, 3 * GIB), [process(WORKER, 3 * GIB)]), transient=GIB)
    text = why_nothing_fits(decision, GIB, block_tokens=128, request_blocks=3)
    assert text.endswith(
        "Raise the memory limit by 4.00 GiB or more, or by 2.00 GiB with --max-model-len 128."
    )
    for more, blocks in ((4 * GIB, 3 + 1), (2 * GIB, 1 + 1)):
        roomier = take(container(4 * GIB + more, 3 * GIB), [process(WORKER, 3 * GIB)])
        assert decided(roomier, transient=GIB).budget.kv_bytes == blocks * GIB


def test_a_fraction_is_one_of_the_limit_also_where_the_host_binds():
    """The host has less left than the container may take; the user meant the container's limit."""
    host = Reading(
        source="meminfo",
        scope="host",
        total_bytes=64 * GIB,
        free_bytes=10 * GIB,
        used_bytes=54 * GIB,
        parts=MemoryParts(available_bytes=10 * GIB),
    )
    taken = snapshot(
        readings=[host, container(16 * GIB, 2 * GIB)],
        processes=[process(WORKER, 2 * GIB)],
        taken_at_s=0.0,
    )
    assert taken.binding_source == "meminfo"
    decision = decided(taken, utilization=0.5)
    assert decision.budget.kv_bytes == 6 * GIB
    assert decision.limit_bytes == 16 * GIB


CACHED = "cached by the C allocator of VLLM::Worker (77), reusable"


def test_what_the_worker_s_allocator_caches_is_a_line_of_its_own_and_the_sum_stays():
    taken = take(container(8 * GIB, 3 * GIB), [process(1, GIB), process(WORKER, 2 * GIB)])
    bare = decided(taken, committed=100 * MIB)
    split = decided(taken, committed=100 * MIB, heap=glibc(GIB, 700 * MIB, GIB + 300 * MIB))
    before, after = sizes(bare), sizes(split)
    assert after.pop(CACHED) == 300 * MIB
    assert after.pop("VLLM::Worker (77)") == (2048 - 100 - 300) * MIB
    assert before.pop("VLLM::Worker (77)") == (2048 - 100) * MIB
    assert before == after
    assert split.ledger.residual_bytes == bare.ledger.residual_bytes
    (line,) = (each for each in split.ledger.lines if each.name == CACHED)
    assert (line.provenance, line.source) == ("derived", "glibc")


def test_no_more_is_called_cached_than_the_worker_has_besides_the_kv_cache():
    taken = take(container(8 * GIB, 2 * GIB), [process(WORKER, GIB, shmem=GIB)])
    decision = decided(taken, committed=GIB - MIB, heap=glibc(0, GIB, GIB))
    assert sizes(decision)[CACHED] == MIB
    assert sizes(decision)["VLLM::Worker (77)"] == GIB


def test_of_a_worker_of_unknown_size_nothing_is_called_cached():
    taken = take(container(8 * GIB, GIB), [replace(process(WORKER, None), source=None)])
    assert CACHED not in sizes(decided(taken, heap=glibc(0, GIB, GIB)))


@given(start=st.integers(GIB, 64 * GIB), now=st.integers(GIB, 64 * GIB))
def test_a_fraction_is_one_of_the_smaller_total_and_sizes_in_bytes_do_not_follow_it(start, now):
    taken = take(container(now, GIB), [process(WORKER, GIB)])
    fractional = decided(taken, utilization=0.5, at_start=start)
    assert fractional.limit_bytes == min(start, now)
    assert fractional.budget.unclamped_bytes <= min(start, now) // 2 + 1 - GIB
    explicit = decided(taken, margin=512 * MIB, at_start=start)
    assert sizes(explicit)["margin"] == 512 * MIB
    assert explicit.budget == decided(taken, margin=512 * MIB).budget


def test_a_total_that_changed_is_said_with_both_numbers():
    taken = take(container(2 * GIB, GIB), [process(WORKER, GIB)])
    assert decided(taken, at_start=2 * GIB).limit.change() is None
    assert decided(taken, at_start=3 * GIB).limit.change() == (
        "total at start 3.00 GiB, now 2.00 GiB: fractions are of 2.00 GiB"
    )


def test_a_bound_on_mappings_is_no_total_to_take_a_fraction_of_and_its_ledger_adds_up():
    data = Reading(
        source="RLIMIT_DATA", scope="process", total_bytes=3 * GIB, used_bytes=2 * GIB + MIB
    )
    taken = snapshot(
        readings=[container(8 * GIB, 2 * GIB), data],
        processes=[process(WORKER, 2 * GIB)],
        taken_at_s=0.0,
    )
    assert (taken.binding_source, taken.available_bytes) == ("RLIMIT_DATA", GIB - MIB)
    decision = decided(taken, committed=MIB, utilization=0.9, heap=glibc(0, GIB, GIB))
    assert decision.limit_bytes == 8 * GIB
    assert sizes(decision)["mapped already"] == 2 * GIB
    assert 0 < decision.kv_bytes <= GIB
    assert decision.ledger.residual_bytes == 0


def test_a_share_holds_all_that_the_engine_needs_and_leaves_the_rest_by_name():
    taken = take(container(8 * GIB, GIB), [process(WORKER, GIB)])
    promise = Promise(size_bytes=4 * GIB, file_bytes=100 * MIB, earlier_kv_bytes=None)
    decision = decided(taken, transient=200 * MIB, margin=128 * MIB, promise=promise)
    assert decision.budget.bound == "share"
    kv_bytes = 3 * GIB - (100 + 200 + 128) * MIB - STEADY_BYTES
    assert decision.budget.kv_bytes == kv_bytes
    assert sizes(decision)[LEFT_OVER_BY_SHARE] == 7 * GIB - decision.kv_bytes - 328 * MIB


def test_an_earlier_size_is_given_again_to_the_block():
    taken = take(container(8 * GIB, GIB), [process(WORKER, GIB)])
    first = decided(taken, promise=Promise(size_bytes=4 * GIB, file_bytes=0, earlier_kv_bytes=None))
    again = Promise(size_bytes=4 * GIB, file_bytes=30 * MIB, earlier_kv_bytes=first.kv_bytes)
    assert decided(taken, promise=again).blocks == first.blocks


def test_where_the_share_is_too_small_the_way_out_is_a_larger_one():
    taken = take(container(8 * GIB, GIB), [process(WORKER, GIB)])
    promise = Promise(size_bytes=2 * GIB, file_bytes=0, earlier_kv_bytes=None)
    decision = decided(taken, transient=3 * GIB, promise=promise)
    text = why_nothing_fits(decision, GIB, block_tokens=128, request_blocks=1)
    more = -(-100 * (4 * GIB + STEADY_BYTES) // (8 * GIB - 128 * MIB))
    assert text.endswith(f"Raise ULLAGE_SHARE by {more}% or more.")

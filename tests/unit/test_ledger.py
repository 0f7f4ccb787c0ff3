"""Ledger and snapshot: lines and residual are the total, to the byte, always."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.ledger import Ledger, Line
from ullage.accounting.snapshot import snapshot
from ullage.devices.base import MemoryParts, ProcessReading, Reading, Scope
from ullage.errors import Unreadable
from ullage.units import GIB, MIB

amounts = st.integers(0, 64 * GIB)
maybe = st.none() | amounts


def line(name: str, size_bytes: int | None) -> Line:
    provenance = "unknown" if size_bytes is None else "exact"
    return Line(name=name, size_bytes=size_bytes, provenance=provenance, source="test")


def process(
    pid: int, anon: int | None, shmem: int | None = 0, file: int | None = 0
) -> ProcessReading:
    return ProcessReading(
        pid=pid,
        ppid=1,
        name="engine",
        start_time_ticks=pid,
        anon_bytes=anon,
        shmem_bytes=shmem,
        file_bytes=file,
        source="smaps_rollup",
    )


CONTAINER = Reading(
    source="cgroup2:/",
    scope="group",
    total_bytes=4096 * MIB,
    used_bytes=3000 * MIB,
    parts=MemoryParts(
        anon_bytes=1500 * MIB,
        shmem_bytes=100 * MIB,
        file_bytes=1350 * MIB,
        inactive_file_bytes=1000 * MIB,
        active_file_bytes=200 * MIB,
        mapped_file_bytes=150 * MIB,
        dirty_bytes=30 * MIB,
        writeback_bytes=20 * MIB,
        kernel_bytes=40 * MIB,
    ),
)


SOURCES: list[tuple[str, Scope]] = [
    ("meminfo", "host"),
    ("NUMA nodes 0", "nodes"),
    ("cgroup2:/", "group"),
    ("cgroup1:/job", "group"),
    ("RLIMIT_DATA", "process"),
    ("overcommit", "commit"),
]


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    names = [name for name in MemoryParts.__dataclass_fields__ if name.endswith("_bytes")]
    source, scope = draw(st.sampled_from(SOURCES))
    parts = {name: draw(maybe) for name in names}
    if source == "meminfo":
        parts["available_bytes"] = draw(amounts)
    return Reading(
        source=source,
        scope=scope,
        total_bytes=draw(amounts),
        used_bytes=draw(amounts),
        free_bytes=draw(amounts) if source == "meminfo" else None,
        parts=MemoryParts(**parts),
    )


def test_a_container_line_by_line():
    taken = snapshot(
        readings=[CONTAINER],
        processes=[process(7, 900 * MIB, 50 * MIB, 80 * MIB), process(8, 100 * MIB, 0, 20 * MIB)],
        taken_at_s=5.0,
    )
    assert [(each.name, each.size_bytes) for each in taken.ledger.lines] == [
        ("engine (7)", 950 * MIB),
        ("engine (8)", 100 * MIB),
        ("other processes", (1600 - 1050) * MIB),
        ("kernel memory", 40 * MIB),
        ("partly freed huge pages, charges in advance", (3000 - 1500 - 1350 - 40) * MIB),
        ("file pages, mapped and in use", 150 * MIB),
        ("file pages, dirty or written back", 50 * MIB),
        ("unused", 1096 * MIB),
        ("file pages, reclaimable", 1000 * MIB),
    ]
    assert taken.available_bytes == (1096 + 1000) * MIB
    # Of 1350 file pages 100 are shmem and 1200 on the lists of those that may be reclaimed.
    assert taken.ledger.residual_bytes == 50 * MIB
    assert taken.own_file_bytes == 100 * MIB
    assert (taken.taken_at_s, taken.binding_source) == (5.0, "cgroup2:/")


def test_more_own_memory_than_the_source_counts_goes_to_the_residual():
    taken = snapshot(readings=[CONTAINER], processes=[process(7, 2000 * MIB)], taken_at_s=0.0)
    sizes = {each.name: each.size_bytes for each in taken.ledger.lines}
    assert sizes["other processes"] == 0
    assert taken.ledger.residual_bytes == (50 - 400) * MIB


@pytest.mark.parametrize(
    ("changed", "beyond_bytes"),
    [
        ({"used_bytes": 2890 * MIB}, None),
        ({"used_bytes": 2000 * MIB}, None),
        ({"used_bytes": 2891 * MIB}, MIB),
        ({"parts": replace(CONTAINER.parts, hugetlb_bytes=100 * MIB)}, 10 * MIB),
        ({"parts": replace(CONTAINER.parts, kernel_bytes=None)}, None),
    ],
)
def test_what_is_charged_beyond_all_counters_has_a_line_where_there_is_any(
    changed: dict[str, Any], beyond_bytes: int | None
):
    taken = snapshot(readings=[replace(CONTAINER, **changed)], processes=[], taken_at_s=0.0)
    sizes = {each.name: each.size_bytes for each in taken.ledger.lines}
    assert sizes.get("partly freed huge pages, charges in advance") == beyond_bytes


def test_a_process_that_cannot_be_read_is_a_line_of_unknown_size():
    taken = snapshot(
        readings=[CONTAINER],
        processes=[process(7, None, None, None), process(8, 100 * MIB)],
        taken_at_s=0.0,
    )
    hidden, seen, others = taken.ledger.lines[:3]
    assert (hidden.size_bytes, hidden.provenance) == (None, "unknown")
    assert seen.size_bytes == 100 * MIB
    assert others.size_bytes == 1500 * MIB
    assert taken.own_file_bytes is None


def test_without_processes_the_own_files_are_unknown_and_not_zero():
    assert snapshot(readings=[CONTAINER], processes=[], taken_at_s=0.0).own_file_bytes is None


def test_the_host_s_margin_and_reclaimable_slab_have_their_place():
    host = Reading(
        source="meminfo",
        scope="host",
        total_bytes=100 * GIB,
        used_bytes=60 * GIB,
        free_bytes=40 * GIB,
        parts=MemoryParts(
            anon_bytes=20 * GIB,
            shmem_bytes=1 * GIB,
            inactive_file_bytes=30 * GIB,
            active_file_bytes=0,
            mapped_file_bytes=2 * GIB,
            dirty_bytes=0,
            writeback_bytes=0,
            kernel_bytes=5 * GIB,
            slab_reclaimable_bytes=3 * GIB,
            available_bytes=72 * GIB,
        ),
    )
    taken = snapshot(readings=[host], processes=[], taken_at_s=0.0)
    sizes = {each.name: each.size_bytes for each in taken.ledger.lines}
    assert sizes["kernel memory"] == 2 * GIB
    assert sizes["margin for the host's watermarks"] == GIB
    assert sizes["unused"] == 40 * GIB
    assert sizes["file pages, reclaimable"] == (72 - 2 - 1 - 40) * GIB
    assert taken.ledger.residual_bytes == 100 * GIB - (21 + 2 + 2 + 1 + 69) * GIB


@given(readings(), st.lists(st.tuples(maybe, maybe, maybe), max_size=30))
def test_lines_and_residual_are_the_total_whatever_was_read(reading, sizes):
    processes = [process(pid, *values) for pid, values in enumerate(sizes)]
    try:
        taken = snapshot(readings=[reading], processes=processes, taken_at_s=0.0)
    except Unreadable:
        return
    ledger = taken.ledger
    known = {each.name: each.size_bytes for each in ledger.lines if each.size_bytes is not None}
    assert sum(known.values()) + ledger.residual_bytes == ledger.total_bytes
    assert ledger.total_bytes == reading.total_bytes
    assert known["unused"] + known.get("file pages, reclaimable", 0) == taken.available_bytes
    own = [each.name for each in ledger.lines if each.name.startswith("engine")]
    assert len(own) == (len(processes) if reading.counts_memory else 0)


@given(amounts, st.lists(maybe, max_size=10))
def test_a_ledger_adds_up_to_the_byte(total, sizes):
    ledger = Ledger(
        total_bytes=total, lines=tuple(line(f"n{i}", size) for i, size in enumerate(sizes))
    )
    assert sum(size or 0 for size in sizes) + ledger.residual_bytes == total


def test_with_lines_replaces_in_place_and_appends_what_is_new():
    ledger = Ledger(total_bytes=10, lines=(line("a", 1), line("b", 2)))
    changed = ledger.with_lines(line("c", 3), line("a", 5))
    assert [(each.name, each.size_bytes) for each in changed.lines] == [
        ("a", 5),
        ("b", 2),
        ("c", 3),
    ]
    assert changed.residual_bytes == 0
    assert ledger.residual_bytes == 7


def test_two_lines_of_one_name_are_refused():
    with pytest.raises(ValueError, match="'a'"):
        Ledger(total_bytes=1, lines=(line("a", 1), line("a", 2)))
    with pytest.raises(ValueError, match="same name"):
        Ledger(total_bytes=1).with_lines(line("a", 1), line("a", 2))


def test_a_line_is_unknown_exactly_when_it_has_no_size_and_never_negative():
    with pytest.raises(ValueError, match="unknown"):
        Line(name="a", size_bytes=None, provenance="exact", source="s")
    with pytest.raises(ValueError, match="unknown"):
        Line(name="a", size_bytes=1, provenance="unknown", source="s")
    with pytest.raises(ValueError, match="negative"):
        line("a", -1)

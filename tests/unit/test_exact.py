"""The rules that turn readings into available memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.exact import file_pages, limiting, settle, unreclaimable_bytes
from ullage.devices.base import MemoryParts, Reading
from ullage.errors import Unreadable
from ullage.units import GIB, MIB


def group(source: str, limit: int | None, used: int | None, **parts: Any) -> Reading:
    return Reading(
        source=source, scope="group", total_bytes=limit, used_bytes=used, parts=MemoryParts(**parts)
    )


def files(inactive: int, active: int, mapped: int = 0, dirty: int = 0, writeback: int = 0) -> Any:
    return {
        "inactive_file_bytes": inactive,
        "active_file_bytes": active,
        "mapped_file_bytes": mapped,
        "dirty_bytes": dirty,
        "writeback_bytes": writeback,
    }


def host_reading(total: int, free: int | None, available: int | None, **parts: Any) -> Reading:
    return Reading(
        source="meminfo",
        scope="host",
        total_bytes=total,
        free_bytes=free,
        parts=MemoryParts(available_bytes=available, **parts),
    )


HOST = host_reading(64 * GIB, 40 * GIB, 50 * GIB, **files(5 * GIB, 5 * GIB))

amounts = st.integers(0, 64 * GIB)
maybe = st.none() | amounts


@st.composite
def limited_groups(draw: st.DrawFn) -> Reading:
    """A group whose parts fit into what is used, as the kernel keeps it."""
    anon, shmem, inactive, active = (draw(amounts) for _ in range(4))
    used = anon + shmem + inactive + active + draw(amounts)
    return group(
        "cgroup2:/g",
        draw(st.integers(0, 256 * GIB)),
        used,
        anon_bytes=anon,
        shmem_bytes=shmem,
        **files(inactive, active, draw(amounts), draw(amounts), draw(amounts)),
    )


@st.composite
def any_readings(draw: st.DrawFn) -> Reading:
    parts = {name: draw(maybe) for name in files(0, 0)}
    return group("cgroup1:/g", draw(maybe), draw(amounts), **parts)


def test_the_worked_example_of_the_module():
    reading = group(
        "cgroup2:/", 4000 * MIB, 3000 * MIB, **files(1000 * MIB, 500 * MIB, mapped=200 * MIB)
    )
    settled = settle([HOST, reading])
    assert settled.available_bytes == 2300 * MIB
    assert settled.binding_source == "cgroup2:/"
    assert settled.total_bytes == 4000 * MIB


def test_the_host_keeps_its_margin_and_its_hot_and_unwritten_pages():
    reading = host_reading(100 * GIB, 50 * GIB, 80 * GIB, **files(20 * GIB, 10 * GIB, GIB, MIB))
    assert settle([reading]).available_bytes == 80 * GIB - GIB - MIB - 1 * GIB  # 1 % of 100 GiB
    small = host_reading(4 * GIB, 2 * GIB, 2 * GIB, **files(0, 0))
    assert settle([small]).available_bytes == 2 * GIB - 256 * MIB


def test_a_host_whose_file_pages_are_not_known_counts_only_what_is_free():
    assert settle([host_reading(100 * GIB, 50 * GIB, 80 * GIB)]).available_bytes == 49 * GIB
    with pytest.raises(Unreadable):
        settle([host_reading(100 * GIB, None, 80 * GIB)])


def test_a_group_whose_file_pages_are_not_known_has_nothing_reclaimable():
    reading = group(
        "cgroup2:/", 8 * GIB, 6 * GIB, **files(2 * GIB, 0) | {"mapped_file_bytes": None}
    )
    assert settle([reading]).available_bytes == 2 * GIB


def test_dirty_pages_beyond_the_lists_make_nothing_negative():
    reading = group("cgroup2:/", 8 * GIB, 6 * GIB, **files(GIB, 0, mapped=MIB, dirty=5 * GIB))
    assert settle([reading]).available_bytes == 2 * GIB


def test_used_above_the_limit_leaves_nothing():
    assert settle([group("cgroup2:/", GIB, 2 * GIB, **files(0, 0))]).available_bytes == 0


def test_the_tightest_ancestor_binds_and_every_source_is_listed():
    settled = settle(
        [
            HOST,
            group("cgroup2:/a/b", None, GIB),
            group("cgroup2:/a", 8 * GIB, 6 * GIB),
            group("cgroup2:/", 16 * GIB, 15 * GIB),
        ]
    )
    assert settled.binding_source == "cgroup2:/"
    assert [(each.source, each.available_bytes) for each in settled.candidates] == [
        ("meminfo", 50 * GIB - 64 * GIB // 100),
        ("cgroup2:/a/b", None),
        ("cgroup2:/a", 2 * GIB),
        ("cgroup2:/", GIB),
    ]


def test_nothing_known_is_an_error_and_not_zero():
    for readings in (
        [],
        [Reading(source="meminfo", scope="host")],
        [group("cgroup2:/", None, GIB)],
    ):
        with pytest.raises(Unreadable):
            settle(readings)


def test_a_limit_whose_use_is_unknown_is_never_answered_by_the_host():
    with pytest.raises(Unreadable, match=r"90\.00 GiB"):
        settle([HOST, group("cgroup2:/", 90 * GIB, None)])


def test_unreclaimable_memory_leaves_file_cache_and_reclaimable_slab_out():
    v1 = MemoryParts(
        anon_bytes=100,
        shmem_bytes=20,
        kernel_bytes=7,
        file_bytes=500 + 20 + 3,
        inactive_file_bytes=300,
        active_file_bytes=200,
        unevictable_bytes=50,  # 3 of it file pages, the rest locked anonymous memory
    )
    assert unreclaimable_bytes(v1) == 100 + 20 + 7 + 3
    v2 = replace(v1, slab_reclaimable_bytes=5)
    assert unreclaimable_bytes(v2) == 100 + 20 + (7 - 5) + 3
    assert unreclaimable_bytes(replace(v1, anon_bytes=None)) is None


@given(any_readings())
def test_available_is_never_negative_and_never_above_the_limit(reading):
    if reading.total_bytes is None:
        return
    assert 0 <= settle([reading]).available_bytes <= reading.total_bytes


@given(limited_groups())
def test_anonymous_memory_and_shmem_never_count_as_available(reading):
    assert reading.total_bytes is not None
    occupied = (reading.parts.anon_bytes or 0) + (reading.parts.shmem_bytes or 0)
    assert settle([reading]).available_bytes <= max(0, reading.total_bytes - occupied)


@given(st.lists(limited_groups(), min_size=1, max_size=4), limited_groups())
def test_one_more_ancestor_never_leaves_more(readings, ancestor):
    before = settle([HOST, *readings]).available_bytes
    assert settle([HOST, *readings, ancestor]).available_bytes <= before


@given(limited_groups(), amounts, st.booleans())
def test_clean_unmapped_page_cache_changes_nothing(reading, cached, active):
    parts = reading.parts
    listed = (parts.inactive_file_bytes or 0) + (parts.active_file_bytes or 0)
    # What is mapped, dirty or written back is on the lists, so more of it cannot be hidden there.
    mapped = min(parts.mapped_file_bytes or 0, listed)
    dirty = min(parts.dirty_bytes or 0, listed - mapped)
    consistent = replace(parts, mapped_file_bytes=mapped, dirty_bytes=dirty, writeback_bytes=0)
    name = "active_file_bytes" if active else "inactive_file_bytes"
    grown = replace(consistent, **{name: getattr(consistent, name) + cached})
    before = replace(reading, parts=consistent)
    after = replace(before, parts=grown, used_bytes=(before.used_bytes or 0) + cached)
    assert settle([after]).available_bytes == settle([before]).available_bytes


@given(limited_groups())
def test_the_three_kinds_of_file_pages_add_up_to_the_lists(reading):
    pages = file_pages(reading.parts)
    assert pages is not None
    assert min(pages.hot_bytes, pages.unwritten_bytes, pages.reclaimable_bytes) >= 0
    assert pages.hot_bytes + pages.unwritten_bytes + pages.reclaimable_bytes == (
        (reading.parts.inactive_file_bytes or 0) + (reading.parts.active_file_bytes or 0)
    )


def test_nodes_have_the_rule_of_a_group_and_the_margin_of_the_host():
    parts = MemoryParts(**files(6 * GIB, 4 * GIB, mapped=GIB, dirty=MIB))
    nodes = Reading(
        source="NUMA nodes 0",
        scope="nodes",
        total_bytes=100 * GIB,
        used_bytes=90 * GIB,
        parts=parts,
    )
    assert settle([nodes]).available_bytes == (10 + 10 - 1 - 1) * GIB - MIB


def test_a_bound_on_addresses_or_promises_is_no_limit_of_memory():
    bounds = [
        Reading(source="RLIMIT_AS", scope="process", total_bytes=GIB, used_bytes=MIB),
        Reading(source="overcommit", scope="commit", total_bytes=2 * GIB, used_bytes=MIB),
    ]
    readings = [HOST, group("cgroup2:/", 8 * GIB, GIB), *bounds]
    assert settle(readings).binding_source == "RLIMIT_AS"
    assert limiting(readings).source == "cgroup2:/"


@given(st.lists(any_readings(), min_size=1), st.lists(any_readings()))
def test_one_more_source_never_makes_more_available(first, more):
    def available(readings: list[Reading]) -> int | None:
        try:
            return settle(readings).available_bytes
        except Unreadable:
            return None

    alone, together = available([HOST, *first]), available([HOST, *first, *more])
    if alone is not None and together is not None:
        assert together <= alone

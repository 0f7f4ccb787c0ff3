"""The most that could ever be taken: what refusals before the start rest on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.ceiling import ceiling
from ullage.accounting.exact import settle
from ullage.devices.base import MemoryParts, Reading
from ullage.units import GIB

SIZES = st.integers(0, 1 << 40)


def group(total: int | None, anon: int | None = 0, shmem: int | None = 0) -> Reading:
    parts = MemoryParts(anon_bytes=anon, shmem_bytes=shmem)
    return Reading(
        source="cgroup1:/job", scope="group", total_bytes=total, used_bytes=0, parts=parts
    )


def test_the_lowest_source_counts_and_is_named():
    host = Reading(
        source="meminfo",
        scope="host",
        total_bytes=64 * GIB,
        parts=MemoryParts(anon_bytes=8 * GIB, shmem_bytes=0),
    )
    most = ceiling([host, group(4 * GIB, anon=GIB, shmem=GIB)])
    assert most is not None
    assert (most.source, most.available_bytes, most.total_bytes) == (
        "cgroup1:/job",
        2 * GIB,
        4 * GIB,
    )


def test_a_source_without_a_limit_or_without_its_parts_bounds_nothing():
    assert ceiling([]) is None
    assert ceiling([group(None), group(GIB, anon=None), group(GIB, shmem=None)]) is None


def test_a_group_over_its_limit_leaves_nothing_and_not_less():
    most = ceiling([group(GIB, anon=2 * GIB)])
    assert most is not None
    assert most.available_bytes == 0


@given(
    total=SIZES, anon=SIZES, shmem=SIZES, inactive=SIZES, active=SIZES, mapped=SIZES, kernel=SIZES
)
def test_it_is_never_below_what_can_surely_be_taken(
    total: int, anon: int, shmem: int, inactive: int, active: int, mapped: int, kernel: int
):
    reading = Reading(
        source="cgroup2:/",
        scope="group",
        total_bytes=total,
        used_bytes=anon + shmem + inactive + active + kernel,
        parts=MemoryParts(
            anon_bytes=anon,
            shmem_bytes=shmem,
            inactive_file_bytes=inactive,
            active_file_bytes=active,
            mapped_file_bytes=mapped,
            dirty_bytes=0,
            writeback_bytes=0,
            kernel_bytes=kernel,
        ),
    )
    most = ceiling([reading])
    assert most is not None
    assert most.available_bytes >= settle([reading]).available_bytes

"""Mapped file pages of the own processes: counted by what is used, wherever they are charged."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.exact import WorkingSet, file_pages, settle
from ullage.accounting.snapshot import snapshot
from ullage.devices.base import MemoryParts, ProcessReading, Reading
from ullage.units import GIB, MIB

ELSEWHERE = "file pages, in use here and charged elsewhere"

amounts = st.integers(0, 4 * GIB)


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """An engine alone in its group: anonymous memory, its mapped files, of which `used_bytes` are
    referenced, and file pages that nobody maps."""

    limit_bytes: int
    anon_bytes: int
    mapped_bytes: int
    used_bytes: int
    unmapped_bytes: int
    unwritten_bytes: int

    @property
    def working_set(self) -> WorkingSet:
        return WorkingSet(mapped_bytes=self.mapped_bytes, referenced_bytes=self.used_bytes)

    def reading(self, *, charged_here_bytes: int, others_mapped_bytes: int = 0) -> Reading:
        """The group when that much of the engine's mapped files was charged to it."""
        files = charged_here_bytes + others_mapped_bytes + self.unmapped_bytes
        return Reading(
            source="cgroup2:/",
            scope="group",
            total_bytes=self.limit_bytes,
            used_bytes=self.anon_bytes + files,
            parts=MemoryParts(
                anon_bytes=self.anon_bytes,
                shmem_bytes=0,
                inactive_file_bytes=self.unmapped_bytes,
                active_file_bytes=charged_here_bytes + others_mapped_bytes,
                mapped_file_bytes=charged_here_bytes + others_mapped_bytes,
                dirty_bytes=self.unwritten_bytes,
                writeback_bytes=0,
                kernel_bytes=0,
            ),
        )

    def available_bytes(self, *, charged_here_bytes: int, others_mapped_bytes: int = 0) -> int:
        reading = self.reading(
            charged_here_bytes=charged_here_bytes, others_mapped_bytes=others_mapped_bytes
        )
        return settle([reading], working_set=self.working_set).available_bytes


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """What is written back is unmapped: a model's files and libraries are only read."""
    mapped, unmapped = draw(amounts), draw(amounts)
    return Engine(
        limit_bytes=draw(st.integers(0, 32 * GIB)),
        anon_bytes=draw(amounts),
        mapped_bytes=mapped,
        used_bytes=draw(st.integers(0, mapped)),
        unmapped_bytes=unmapped,
        unwritten_bytes=draw(st.integers(0, unmapped)),
    )


COLD = Engine(
    limit_bytes=4096 * MIB,
    anon_bytes=1500 * MIB,
    mapped_bytes=600 * MIB,
    used_bytes=150 * MIB,
    unmapped_bytes=900 * MIB,
    unwritten_bytes=0,
)


def test_only_what_is_really_used_of_the_mapped_files_is_kept():
    assert COLD.available_bytes(charged_here_bytes=600 * MIB) == (4096 - 1500 - 150) * MIB
    without = settle([COLD.reading(charged_here_bytes=600 * MIB)])
    assert without.available_bytes == (4096 - 1500 - 600) * MIB


def test_files_that_another_group_was_charged_for_find_room_here_all_the_same():
    pages = file_pages(COLD.reading(charged_here_bytes=0).parts, COLD.working_set)
    assert pages is not None
    assert (pages.hot_bytes, pages.elsewhere_bytes) == (0, 150 * MIB)
    assert COLD.available_bytes(charged_here_bytes=0) == (4096 - 1500 - 150) * MIB


@given(engines(), st.data())
def test_who_was_charged_for_the_own_files_changes_nothing(engine, data):
    """A second start finds its libraries charged to the group of the first."""
    all_here = engine.available_bytes(charged_here_bytes=engine.mapped_bytes)
    some = data.draw(st.integers(0, engine.mapped_bytes))
    assert engine.available_bytes(charged_here_bytes=some) == all_here


@given(engines(), amounts, st.data())
def test_what_others_map_here_is_kept_in_full_beside_an_engine_whose_files_are_here(
    engine, others, data
):
    alone = engine.available_bytes(charged_here_bytes=engine.mapped_bytes)
    beside = engine.available_bytes(
        charged_here_bytes=engine.mapped_bytes, others_mapped_bytes=others
    )
    assert beside == max(0, alone - others)
    # Charged elsewhere, the own files cannot be told from the others': between the two.
    some = data.draw(st.integers(0, engine.mapped_bytes))
    unclear = engine.available_bytes(charged_here_bytes=some, others_mapped_bytes=others)
    assert beside <= unclear <= alone


@given(engines(), st.data())
def test_using_more_of_the_own_files_never_leaves_more(engine, data):
    here = data.draw(st.integers(0, engine.mapped_bytes))
    reading = engine.reading(charged_here_bytes=here)
    less = data.draw(st.integers(0, engine.used_bytes))
    smaller = WorkingSet(mapped_bytes=engine.mapped_bytes, referenced_bytes=less)
    assert settle([reading], working_set=engine.working_set).available_bytes <= (
        settle([reading], working_set=smaller).available_bytes
    )


@given(engines(), st.data())
def test_a_snapshot_with_a_working_set_adds_up_to_the_byte(engine, data):
    here = data.draw(st.integers(0, engine.mapped_bytes))
    own = ProcessReading(
        pid=7,
        ppid=1,
        name="engine",
        start_time_ticks=1,
        anon_bytes=engine.anon_bytes,
        shmem_bytes=0,
        file_bytes=engine.mapped_bytes,
        source="smaps_rollup",
    )
    taken = snapshot(
        readings=[engine.reading(charged_here_bytes=here)],
        processes=[own],
        taken_at_s=0.0,
        working_set=engine.working_set,
    )
    sizes = {line.name: line.size_bytes or 0 for line in taken.ledger.lines}
    assert sum(sizes.values()) + taken.ledger.residual_bytes == engine.limit_bytes
    assert sizes["unused"] + sizes["file pages, reclaimable"] == taken.available_bytes
    assert sizes["file pages, mapped and in use"] + sizes.get(ELSEWHERE, 0) == engine.used_bytes
    if taken.available_bytes > 0:
        assert taken.ledger.residual_bytes == 0


def test_the_line_for_what_is_charged_elsewhere_is_there_only_where_there_is_any():
    def names(charged_here_bytes: int) -> list[str]:
        taken = snapshot(
            readings=[COLD.reading(charged_here_bytes=charged_here_bytes)],
            processes=[],
            taken_at_s=0.0,
            working_set=COLD.working_set,
        )
        return [line.name for line in taken.ledger.lines]

    assert ELSEWHERE in names(0)
    assert ELSEWHERE not in names(600 * MIB)


def test_mapped_shmem_of_the_own_processes_is_not_kept_a_second_time():
    """The kernel's count of mapped pages has it, and so has `used`, where nothing reclaims it."""
    shmem = 200 * MIB
    reading = Reading(
        source="cgroup2:/",
        scope="group",
        total_bytes=4096 * MIB,
        used_bytes=(1500 + 200 + 600 + 900) * MIB,
        parts=MemoryParts(
            anon_bytes=1500 * MIB,
            shmem_bytes=shmem,
            inactive_file_bytes=900 * MIB,
            active_file_bytes=600 * MIB,
            mapped_file_bytes=600 * MIB + shmem,
            dirty_bytes=0,
            writeback_bytes=0,
        ),
    )
    working_set = WorkingSet(mapped_bytes=600 * MIB + shmem, referenced_bytes=150 * MIB)
    settled = settle([reading], working_set=working_set)
    assert settled.available_bytes == (4096 - 1500 - 200 - 150) * MIB

"""The plugin's view of the host: what the first look fixes, and what addresses are no bound of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from ullage import leases
from ullage.accounting.leases import Lease, Process
from ullage.devices import host
from ullage.devices.base import MemoryParts, ProcessReading, Reading
from ullage.errors import MemoryRefused
from ullage.units import GIB
from ullage.vllm_plugin.observe import Observer
from ullage.vllm_plugin.ranks import Ranks

ADDRESSES = Reading(source="RLIMIT_AS", scope="process", total_bytes=3 * GIB, used_bytes=2 * GIB)
Show = Callable[..., None]


def group(limit: int) -> Reading:
    return Reading(
        source="cgroup2:/",
        scope="group",
        total_bytes=limit,
        used_bytes=GIB,
        parts=MemoryParts(anon_bytes=GIB, shmem_bytes=0),
    )


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    def replace(*readings: Reading) -> None:
        def read_at(*_: object, **__: object) -> Sequence[Reading]:
            return readings

        monkeypatch.setattr(host, "read_at", read_at)

    return replace


def test_the_limit_that_was_seen_first_is_kept(show):
    observer = Observer()
    for limit in (8 * GIB, 4 * GIB, 16 * GIB):
        show(group(limit))
        assert observer.take().total_bytes == limit
        assert observer.limit_at_start_bytes == 8 * GIB


def test_what_is_left_of_the_addresses_bounds_no_memory(show):
    show(group(8 * GIB), ADDRESSES)
    observer = Observer()
    assert observer.take().available_bytes == observer.available_bytes() == 7 * GIB
    assert observer.mappable_bytes() == GIB


def test_more_addresses_than_are_left_are_refused_by_name_and_others_are_not(show):
    show(group(8 * GIB), ADDRESSES)
    Observer().check_addresses(GIB)
    with pytest.raises(MemoryRefused, match=r"4\.00 GiB of addresses, and RLIMIT_AS leaves 1\.00"):
        Observer().check_addresses(4 * GIB)


def test_without_a_limit_on_addresses_any_number_may_be_taken(show):
    show(group(8 * GIB))
    Observer().check_addresses(1 << 45)
    assert Observer().mappable_bytes() is None


FRONTEND, CORE, RANK = 100, 101, 55


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    """This rank and another one are below no front end, as Ray starts them."""
    show(group(8 * GIB))
    found = {FRONTEND: [FRONTEND, CORE], os.getpid(): [os.getpid()], RANK: [RANK, RANK + 1]}
    monkeypatch.setattr(host, "process_tree", lambda pid: found.get(pid, []))
    monkeypatch.setattr(host, "read_processes", lambda pids: [process(pid) for pid in pids])
    monkeypatch.setenv("ULLAGE_FRONTEND", str(FRONTEND))
    monkeypatch.delenv("RAY_RAYLET_PID", raising=False)


def process(pid: int) -> ProcessReading:
    return ProcessReading(
        pid=pid, ppid=1, name="p", start_time_ticks=1, anon_bytes=1, shmem_bytes=0, file_bytes=0,
        source="smaps_rollup",
    )  # fmt: skip


class TwoRanks(Ranks):
    def gather(self, work: Callable[[], int]) -> tuple[int, ...]:  # type: ignore[override]
        return (work(), RANK)


def pids(processes: Iterable[ProcessReading]) -> set[int]:
    return {each.pid for each in processes}


def test_front_end_core_and_all_ranks_are_an_engine_s_own_also_in_ray(trees, monkeypatch):
    monkeypatch.setenv("RAY_RAYLET_PID", "7")
    own = pids(Observer(TwoRanks()).take().processes)
    assert own == {FRONTEND, CORE, os.getpid(), RANK, RANK + 1}


def test_a_front_end_that_an_ended_engine_left_in_the_environment_is_not_ours(trees):
    assert pids(Observer(TwoRanks()).take().processes) == {os.getpid(), RANK, RANK + 1}


def test_a_lease_s_processes_are_those_that_its_engine_counts_itself(trees):
    me = Process(boot_id="b", pid_namespace="n", pid=os.getpid(), start_time_ticks=1)
    lease = Lease(
        worker=me, frontend_pid=FRONTEND, rank_pids=(me.pid, RANK), limit="host", limits=("host",),
        limit_bytes=8, share=None, promised_bytes=8, taken_bytes=0,
    )  # fmt: skip
    assert set(leases.pids(lease)) == {FRONTEND, CORE, me.pid, RANK, RANK + 1}
    assert set(leases.pids(replace(lease, rank_pids=()))) == {FRONTEND, CORE, me.pid}

"""The worker's lease, step by step.  The engine around it is made up, the folder is real."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM")

from ullage.accounting.ceiling import Ceiling
from ullage.accounting.leases import Lease
from ullage.accounting.snapshot import Snapshot, snapshot
from ullage.budget import Budget
from ullage.devices import host
from ullage.devices.base import MemoryParts, Reading
from ullage.drivers import procfs
from ullage.errors import OverAvailable, Unreadable
from ullage.leases import LeaseFolder, this_process
from ullage.units import GIB, MIB

with warnings.catch_warnings():  # of vLLM's own imports
    warnings.simplefilter("ignore")
    from ullage.vllm_plugin import tenant

COMMON = 128 * MIB


class Observer:
    """Of a group of 8 GiB in which others hold `foreign_bytes`."""

    frontend_pid, rank_pids = os.getpid(), (os.getpid(),)

    def __init__(self) -> None:
        self.foreign_bytes = GIB
        self.others: Any = tuple

    def take(self) -> Snapshot:
        self.others()
        parts = MemoryParts(anon_bytes=self.foreign_bytes, shmem_bytes=0)
        reading = Reading(
            source="meminfo",
            scope="host",
            total_bytes=8 * GIB,
            free_bytes=4 * GIB,
            parts=replace(parts, available_bytes=4 * GIB),
        )
        return snapshot(readings=[reading], processes=[], taken_at_s=0.0)

    def file_bytes(self, taken: Snapshot) -> int:
        return 100 * MIB


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("ULLAGE_SHARE", raising=False)
    return tmp_path / "ullage"


def lease_in(place: Path) -> Any:
    (lease,) = LeaseFolder(place).read().living
    return lease


def decision(*, bound: str = "share") -> Any:
    budget = Budget(unclamped_bytes=GIB, bound=bound, deductions=())
    return SimpleNamespace(kv_bytes=GIB, budget=budget)


def test_a_share_is_promised_from_start_to_end_and_its_size_given_again(place, monkeypatch):
    monkeypatch.setenv("ULLAGE_SHARE", "1/2")
    observer = Observer()
    engine = tenant.Tenant()
    engine.enter(observer, None)
    lease = lease_in(place)
    assert (lease.worker.pid, lease.share) == (os.getpid(), "1/2")
    assert lease.promised_bytes == (8 * GIB - COMMON) // 2
    engine.begin_measuring()
    taken = observer.take()
    assert engine.promise(taken, "alike").earlier_kv_bytes is None
    engine.decided(decision(), taken)
    engine.committed()
    assert lease_in(place).promised_bytes == lease.promised_bytes
    engine.leave()
    assert LeaseFolder(place).read().living == ()
    again = tenant.Tenant()
    again.enter(observer, None)
    assert again.promise(taken, "alike").earlier_kv_bytes == GIB
    assert again.promise(taken, "other").earlier_kv_bytes is None
    again.leave()


def most(available_bytes: int) -> Ceiling:
    return Ceiling(source="meminfo", total_bytes=8 * GIB, available_bytes=available_bytes)


def test_the_room_is_the_least_of_the_most_of_what_others_leave_and_of_the_promise(
    place, monkeypatch
):
    monkeypatch.setattr(host, "identities", lambda: {"meminfo": "host"})
    monkeypatch.setattr(host, "held_bytes", lambda _: GIB)
    assert tenant.Tenant().room(most(7 * GIB)) == most(7 * GIB)
    monkeypatch.setenv("ULLAGE_SHARE", "1/2")
    engine = tenant.Tenant()
    engine.enter(Observer(), None)
    room = engine.room(most(7 * GIB))
    assert room.source == "the share 1/2 of meminfo"
    assert room.total_bytes == (8 * GIB - COMMON) // 2
    assert room.available_bytes == room.total_bytes - GIB
    other = another_engine(place)  # its promise is as large, and a GiB is taken
    assert other.needed_bytes == room.available_bytes
    assert engine.room(most(4 * GIB)) == most(4 * GIB - other.needed_bytes)
    assert engine.room(most(GIB)) == most(0)
    engine.leave()


def another_engine(place: Path) -> Any:
    parent = procfs.stat(os.getppid())
    worker = replace(this_process(), pid=parent.pid, start_time_ticks=parent.start_time_ticks)
    folder = LeaseFolder(place)
    other = replace(lease_in(place), worker=worker, frontend_pid=worker.pid)
    with folder.changing():
        folder.write(other)
    return other


def test_a_size_that_the_share_did_not_decide_is_not_promised_again(place, monkeypatch):
    monkeypatch.setenv("ULLAGE_SHARE", "1/2")
    observer = Observer()
    engine = tenant.Tenant()
    engine.enter(observer, None)
    taken = observer.take()
    engine.promise(taken, "alike")
    engine.decided(decision(bound="available"), taken)
    assert engine.promise(taken, "alike").earlier_kv_bytes is None
    engine.leave()


def test_without_a_share_one_line_says_that_it_takes_all_and_how_to_divide(place, caplog):
    engine = tenant.Tenant()
    with heard(caplog):
        engine.enter(Observer(), None)
    assert "takes all that is left of 8.00 GiB" in caplog.text
    assert "ULLAGE_SHARE=1/2" in caplog.text
    assert lease_in(place).share is None
    assert engine.promise(Observer().take(), "alike") is None
    engine.leave()


def test_a_fraction_of_the_user_s_is_a_share_that_keeps_its_meaning(place):
    engine = tenant.Tenant()
    engine.enter(Observer(), 0.25)
    assert (lease_in(place).share, lease_in(place).promised_bytes) == ("1/4", 2 * GIB)
    assert engine.promise(Observer().take(), "alike") is None
    engine.leave()


def test_what_others_took_during_the_start_is_said(place, caplog):
    observer = Observer()
    engine = tenant.Tenant()
    engine.enter(observer, None)
    observer.foreign_bytes += GIB // 2
    with heard(caplog):
        engine.decided(decision(bound="available"), observer.take())
    assert "processes that are not ours hold 0.50 GiB more" in caplog.text
    engine.leave()


def test_nothing_is_said_where_an_engine_came_meanwhile_that_held_memory_without_a_lease(
    place, caplog
):
    observer = Observer()
    engine = tenant.Tenant()
    engine.enter(observer, 0.5)
    another_engine(place)
    observer.foreign_bytes += GIB // 2
    with heard(caplog):
        engine.decided(decision(), observer.take())
    assert "processes that are not ours" not in caplog.text
    engine.leave()


@pytest.fixture
def unusable(place: Path) -> Path:
    """Any user may have made it in /tmp."""
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    return place


def test_without_a_share_an_unusable_folder_is_one_warning_and_the_start_goes_on(unusable, caplog):
    engine, observer = tenant.Tenant(), Observer()
    with heard(caplog):
        engine.enter(observer, None)
    assert len({id(record) for record in caplog.records}) == 1
    assert "ullage has no lease" in caplog.text
    assert "is open to other users" in caplog.text
    engine.begin_measuring()
    taken = observer.take()
    assert engine.promise(taken, "alike") is None
    engine.decided(decision(bound="available"), taken)
    engine.committed()
    engine.leave()
    assert not list(unusable.iterdir())


def test_a_share_without_a_usable_folder_is_refused(unusable, monkeypatch):
    monkeypatch.setenv("ULLAGE_SHARE", "1/2")
    with pytest.raises(Unreadable, match="XDG_RUNTIME_DIR"):
        tenant.Tenant().enter(Observer(), None)


def neighbour(place: Path, share: str | None) -> Lease:
    """Another engine, which lives: the process that started the tests."""
    parent = procfs.stat(os.getppid())
    worker = replace(this_process(), pid=parent.pid, start_time_ticks=parent.start_time_ticks)
    lease = replace(lease_in(place), worker=worker, frontend_pid=worker.pid, rank_pids=())
    return replace(lease, share=share)


def put(place: Path, lease: Lease) -> None:
    folder = LeaseFolder(place)
    with folder.changing():
        folder.write(lease)


def own_lease(place: Path) -> Lease:
    (own,) = [x for x in LeaseFolder(place).read().living if x.worker.pid == os.getpid()]
    return own


@pytest.mark.parametrize("share", ["1/2", None])
def test_a_sleeping_engine_promises_what_it_holds_and_all_again_once_it_wakes(
    place, monkeypatch, share
):
    monkeypatch.setenv("ULLAGE_SHARE", share or "")
    engine = tenant.Tenant()
    engine.enter(Observer(), None)
    awake = own_lease(place)
    engine.asleep()
    asleep = own_lease(place)
    assert asleep.promised_bytes == pytest.approx(asleep.taken_bytes, abs=16 * MIB)
    assert asleep.needed_bytes < 16 * MIB < awake.needed_bytes
    assert 0 < Fraction(asleep.share) < Fraction(1, 2)
    engine.awake()
    assert replace(own_lease(place), taken_bytes=0) == replace(awake, taken_bytes=0)
    engine.asleep()
    assert own_lease(place).needed_bytes < 16 * MIB
    engine.leave()
    assert LeaseFolder(place).read().living == ()


@pytest.mark.parametrize("share", ["1/2", None])
def test_what_a_newcomer_was_promised_cannot_be_had_by_waking(place, monkeypatch, share):
    monkeypatch.setenv("ULLAGE_SHARE", share or "")
    engine = tenant.Tenant()
    engine.enter(Observer(), None)
    engine.asleep()
    asleep = own_lease(place)
    newcomer = neighbour(place, "2/3")
    put(place, newcomer)
    for _ in range(2):
        with pytest.raises(OverAvailable, match=r"hold 2/3 \(process .* stays asleep"):
            engine.awake()
        engine.asleep_again()
        assert own_lease(place).promised_bytes == asleep.promised_bytes
    LeaseFolder(place).remove(newcomer)
    engine.awake()
    assert own_lease(place).share == share
    engine.leave()


def test_beside_those_who_were_there_before_an_engine_wakes_whatever_they_hold(place, monkeypatch):
    """One without a share took what this one left, and no more."""
    monkeypatch.setenv("ULLAGE_SHARE", "1/2")
    engine = tenant.Tenant()
    engine.enter(Observer(), None)
    put(place, neighbour(place, None))
    engine.asleep()
    engine.awake()
    assert own_lease(place).share == "1/2"
    engine.leave()


def test_where_the_memory_of_a_woken_engine_is_refused_it_promises_as_little_as_before(
    place, monkeypatch
):
    monkeypatch.setenv("ULLAGE_SHARE", "1/2")
    engine = tenant.Tenant()
    engine.enter(Observer(), None)
    engine.asleep()
    asleep = own_lease(place)
    engine.awake()
    engine.asleep_again()
    assert own_lease(place).promised_bytes == asleep.promised_bytes
    engine.leave()


def heard(caplog: Any) -> Any:
    """vLLM's loggers do not propagate to the root, where caplog listens."""
    logger = logging.getLogger("vllm.ullage.tenant")
    if caplog.handler not in logger.handlers:
        logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    return caplog.at_level(logging.INFO)

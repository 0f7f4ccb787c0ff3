"""The worker's lease, step by step.  The engine around it is made up, the folder is real."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM")

from ullage.accounting.ceiling import Ceiling
from ullage.accounting.snapshot import Snapshot, snapshot
from ullage.budget import Budget
from ullage.devices import host
from ullage.devices.base import MemoryParts, Reading
from ullage.drivers import procfs
from ullage.errors import DoesNotFit, Unsupported
from ullage.leases import LeaseFolder, this_process
from ullage.units import GIB, MIB

with warnings.catch_warnings():  # of vLLM's own imports
    warnings.simplefilter("ignore")
    from ullage.vllm_plugin import ranks, settings, tenant
    from ullage.vllm_plugin.cpu_worker import UllageCPUWorker
    from ullage.vllm_plugin.ranks import ALONE
    from ullage.vllm_plugin.recorder import Recorder
    from ullage.vllm_plugin.sleep import SleepingCPUWorker

COMMON = 128 * MIB


class Observer:
    """Of a group of 8 GiB in which others hold `foreign_bytes`."""

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


def heard(caplog: Any) -> Any:
    """vLLM's loggers do not propagate to the root, where caplog listens."""
    logger = logging.getLogger("vllm.ullage.tenant")
    logger.handlers.append(caplog.handler)
    logger.setLevel(logging.INFO)
    return caplog.at_level(logging.INFO)


class Steps(list[str]):
    """A tenant that keeps what it is told."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.append(name)

    def leaving_on_error(self) -> Any:
        return tenant.Tenant.leaving_on_error(self)  # type: ignore[arg-type]


@pytest.fixture
def worker(monkeypatch) -> Any:
    for name in ("initialize_from_config", "shutdown"):
        monkeypatch.setattr(SleepingCPUWorker, name, lambda *_: None)
    monkeypatch.setattr(SleepingCPUWorker, "determine_available_memory", lambda _: 7)
    monkeypatch.setenv("ULLAGE_RECEIPTS", "0")
    made = object.__new__(UllageCPUWorker)
    made._tenant, made._ranks = Steps(), ALONE
    made._recorder = Recorder(model="m", settings=settings.read({}), warn=print)
    made._capacity, made._settings = None, SimpleNamespace(strict=False)
    made._cache = SimpleNamespace(
        layout=SimpleNamespace(block_bytes=10), committed_blocks=5, physical_bytes=50
    )
    made._reserve = lambda: made._cache
    made._should_warm_up_model = lambda: True
    made.model_runner = SimpleNamespace(warming_up_model=lambda: made._tenant.append("warm up"))
    made._commit = lambda *_: made._tenant.append("commit")
    return made


@pytest.mark.parametrize(("rank", "steps"), [(0, ["enter"]), (1, [])])
def test_the_first_rank_enters_for_all_of_an_engine(worker, monkeypatch, rank, steps):
    monkeypatch.setattr(SleepingCPUWorker, "init_device", lambda _: None)
    only_the_first = SimpleNamespace(
        first=lambda work: work() if rank == 0 else None, gather=lambda work: (work(),)
    )
    monkeypatch.setattr(ranks, "of_the_engine", lambda: only_the_first)
    worker.cache_config = SimpleNamespace(gpu_memory_utilization=0.5)
    worker.init_device()
    assert worker._tenant == steps


def measures(worker: Any, answer: Callable[[], int]) -> None:
    worker._fitting_blocks = lambda _: worker._tenant.append("measure") or answer()


def nothing_fits() -> int:
    raise DoesNotFit("nothing fits")


def test_no_other_engine_measures_from_before_the_warm_up_until_after_the_commit(worker):
    measures(worker, lambda: 5)
    assert worker.determine_available_memory() == 50
    worker.initialize_from_config(SimpleNamespace(kv_cache_groups=()))
    worker.shutdown()
    assert worker._tenant == [
        "begin_measuring", "warm up", "measure", "commit", "committed", "leave",
    ]  # fmt: skip


def test_a_start_that_is_refused_leaves_no_lease(worker):
    measures(worker, nothing_fits)
    with pytest.raises(DoesNotFit):
        worker.determine_available_memory()
    assert worker._tenant[-1] == "leave"


def test_a_start_that_is_left_to_stock_promises_nothing(worker):
    def unsupported() -> None:
        raise Unsupported("not this one")

    worker._reserve, worker._cache = unsupported, None
    assert worker.determine_available_memory() == 7
    assert worker._tenant == ["leave"]

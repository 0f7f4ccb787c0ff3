"""A worker of ours leaves its lease whichever way it ends, and leaves no share to stock vLLM."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM")

from ullage.errors import DoesNotFit, OverAvailable, Unsupported

with warnings.catch_warnings():  # of vLLM's own imports
    warnings.simplefilter("ignore")
    from ullage.vllm_plugin import activate, ranks, settings, tenant
    from ullage.vllm_plugin.cpu_worker import UllageCPUWorker
    from ullage.vllm_plugin.ranks import ALONE
    from ullage.vllm_plugin.recorder import Recorder
    from ullage.vllm_plugin.sleep import SleepingCPUWorker


class Steps(list[str]):
    """A tenant that keeps what it is told."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.append(name)

    def leaving_on_error(self) -> Any:
        return tenant.Tenant.leaving_on_error(self)  # type: ignore[arg-type]


@pytest.fixture
def worker(monkeypatch) -> Any:
    monkeypatch.setattr(SleepingCPUWorker, "initialize_from_config", lambda *_: None)
    monkeypatch.setattr(
        SleepingCPUWorker, "shutdown", lambda self: self._tenant.append("stock shuts down")
    )
    monkeypatch.setattr(SleepingCPUWorker, "determine_available_memory", lambda _: 7)
    monkeypatch.setenv("ULLAGE_RECEIPTS", "0")
    made = object.__new__(UllageCPUWorker)
    made._tenant, made._ranks = Steps(), ALONE
    made._recorder = Recorder(model="m", settings=settings.read({}), warn=print)
    made._capacity, made._settings = None, SimpleNamespace(strict=False, share=None)
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
        "begin_measuring", "warm up", "measure", "commit", "committed",
        "stock shuts down", "leave",
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


@pytest.mark.parametrize(
    ("strict", "share", "message"),
    [(True, None, "not this one"), (False, "1/2", "not this one.*Unset ULLAGE_SHARE")],
)
def test_a_start_that_may_not_be_left_to_stock_is_refused_and_leaves_no_lease(
    worker, strict, share, message
):
    def unsupported() -> None:
        raise Unsupported("not this one.")

    worker._reserve, worker._cache = unsupported, None
    worker._settings = SimpleNamespace(strict=strict, share=share)
    with pytest.raises(Unsupported, match=message):
        worker.determine_available_memory()
    assert worker._tenant == ["leave"]


def test_a_share_that_stock_would_not_keep_is_refused_with_the_reason_and_the_way_out(monkeypatch):
    monkeypatch.setenv("ULLAGE_SHARE", "1/3")
    with pytest.raises(Unsupported, match=r"no such model.*ULLAGE_SHARE=1/3.*Unset ULLAGE_SHARE"):
        activate.fall_back("no such model")


def test_the_lease_goes_last_also_where_stock_s_shutdown_fails(worker, monkeypatch):
    def fails(_: Any) -> None:
        worker._tenant.append("stock shuts down")
        raise RuntimeError("in stock")

    monkeypatch.setattr(SleepingCPUWorker, "shutdown", fails)
    with pytest.raises(RuntimeError):
        worker.shutdown()
    assert worker._tenant == ["stock shuts down", "leave"]


def test_where_the_engine_refuses_between_our_steps_the_lease_goes_with_the_worker(
    worker, monkeypatch
):
    """In one process with its front end (VLLM_ENABLE_V1_MULTIPROCESSING=0) nobody shuts it down."""
    steps = worker._tenant
    monkeypatch.setattr(SleepingCPUWorker, "init_device", lambda _: None)
    monkeypatch.setattr(ranks, "of_the_engine", lambda: ALONE)
    made = object.__new__(UllageCPUWorker)
    made._recorder, made._tenant = worker._recorder, steps
    made.cache_config = SimpleNamespace(gpu_memory_utilization=0.5)
    made.init_device()
    assert steps == ["enter"]
    del made
    gc.collect()
    assert steps == ["enter", "leave"]


class TwoRanks(ranks.Ranks):
    """This one and another, which met `error`, if any."""

    def __init__(self, rank: int, error: Exception | None = None) -> None:
        super().__init__(rank=rank, size=2)
        self.error = error

    def _exchange(self, answer: Any) -> tuple[Any, ...]:
        other = self.error if self.error is not None else answer
        return (answer, other) if self.rank == 0 else (other, answer)


@pytest.mark.parametrize(("rank", "steps"), [(0, ["asleep"]), (1, [])])
def test_the_first_rank_promises_less_for_all_while_they_sleep(worker, rank, steps):
    worker._ranks = TwoRanks(rank)
    worker._cache = Cache(worker._tenant)
    worker.sleep()
    assert worker._tenant == ["cache sleeps", *steps]


class Cache:
    physical_bytes = 50
    asleep = True

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    def sleep(self) -> None:
        self.steps.append("cache sleeps")

    def wake(self) -> None:
        self.steps.append("cache wakes")


def test_a_wake_that_another_rank_is_refused_gives_the_memory_back_and_then_the_promise(worker):
    worker._cache = Cache(worker._tenant)
    worker._ranks = ranks.ALONE
    worker._cache.wake = refused
    with pytest.raises(OverAvailable):
        worker.wake_up()
    assert worker._tenant == ["awake", "cache sleeps", "asleep_again"]


def test_a_refusal_on_the_second_rank_ends_the_first_one_s_lease_too(worker):
    worker._ranks = TwoRanks(0, DoesNotFit("rank 1 has no room"))
    worker._cache = None
    with pytest.raises(DoesNotFit, match="rank 1 has no room"):
        worker.determine_available_memory()
    assert worker._tenant == ["leave"]


def refused() -> None:
    raise OverAvailable("no room")

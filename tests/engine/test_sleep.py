"""An engine that is put to sleep gives its KV cache's memory back, and answers as before."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from engines import run

from ullage.errors import OverAvailable
from ullage.units import GIB, MIB

pytestmark = [pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="needs vLLM")


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return run("sleeper.py", ULLAGE="1", ULLAGE_STRICT="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")


def kv_bytes(told: dict[str, Any]) -> float:
    (committed,) = re.findall(r"ullage committed \d+ blocks, ([\d.]+) GiB", told["log"])
    return float(committed) * GIB


@pytest.mark.parametrize("asleep", ["asleep", "asleep by rpc", "weights awake"])
def test_asleep_the_process_is_smaller_by_the_whole_cache(told, asleep):
    awake = told["awake"] if asleep == "asleep" else told["awake again"]
    # The log rounds to a hundredth of a GiB.
    assert awake - told[asleep] == pytest.approx(kv_bytes(told), abs=16 * MIB)
    assert kv_bytes(told) > 256 * MIB
    assert told["sleeping"] is True


@pytest.mark.parametrize("woken", ["woken", "woken by rpc"])
def test_awake_again_it_gives_the_same_outputs_and_remembers_no_prefix(told, woken):
    assert told["again"]["cached_tokens"] > 0
    assert told[woken]["cached_tokens"] == 0
    assert told[woken]["outputs"] == told["first"]["outputs"]
    assert told["awake again"] == pytest.approx(told["awake"], abs=32 * MIB)


def test_a_request_that_reaches_a_sleeping_cache_gets_an_error_and_the_process_lives(told):
    assert "The KV cache is asleep" in told["error"]
    assert "LLM.wake_up" in told["error"]


def test_where_another_rank_cannot_wake_this_one_sleeps_again():
    with warnings.catch_warnings():  # of vLLM's own imports
        warnings.simplefilter("ignore")
        from ullage.vllm_plugin.sleep import SleepingCPUWorker

    steps: list[str] = []

    def refused(work: Callable[[], None]) -> None:
        work()
        raise OverAvailable("on rank 1")

    worker = object.__new__(SleepingCPUWorker)
    worker._cache = SimpleNamespace(
        asleep=True, wake=lambda: steps.append("wake"), sleep=lambda: steps.append("sleep")
    )
    worker._ranks = SimpleNamespace(in_turn=refused, first=lambda work: work())
    worker._tenant = SimpleNamespace(
        awake=lambda: steps.append("promise"), asleep_again=lambda: steps.append("promise less")
    )
    with pytest.raises(OverAvailable):
        worker.wake_up()
    assert steps == ["promise", "wake", "sleep", "promise less"]

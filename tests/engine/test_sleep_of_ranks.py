"""Sleep and wake of several ranks, all or none.  No engine is started."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM")

from fakes.memory import PAGE, FakeMemory
from fakes.ranks import on_ranks
from ullage.errors import MemoryRefused
from ullage.kv.cache import KVCache
from ullage.kv.size import Layout, Segment

with warnings.catch_warnings():  # of vLLM's own imports
    warnings.simplefilter("ignore")
    from ullage.vllm_plugin.ranks import Ranks
    from ullage.vllm_plugin.sleep import SleepingCPUWorker

LAYOUT = Layout(
    size_bytes=64,
    capacity_blocks=4,
    segments=(Segment(offset_bytes=0, stride_bytes=16),),
    granularity_bytes=PAGE,
)


def worker(ranks: Ranks, memory: FakeMemory) -> Any:
    made = object.__new__(SleepingCPUWorker)
    made._ranks, made._cache = ranks, KVCache(memory, LAYOUT)
    made._tenant = SimpleNamespace(asleep=int, awake=int, asleep_again=int)  # they do nothing
    made._cache.commit(4)
    return made


@pytest.mark.parametrize("refused_on", [0, 1])
def test_where_one_rank_cannot_sleep_all_stay_awake_and_all_are_told(refused_on: int):
    def start(ranks: Ranks) -> tuple[bool, int]:
        memory = FakeMemory()
        made = worker(ranks, memory)
        if ranks.rank == refused_on:
            memory.fail_after = 0
        with pytest.raises(MemoryRefused):
            made.sleep()
        return made._cache.asleep, made._cache.physical_bytes

    assert on_ranks(2, start) == [(False, 64), (False, 64)]


def test_asleep_together_they_hold_nothing_and_awake_what_they_had():
    def start(ranks: Ranks) -> list[int]:
        made = worker(ranks, FakeMemory())
        sizes = []
        for step in (made.sleep, made.sleep, made.wake_up):
            step()
            sizes.append(made._cache.physical_bytes)
        return sizes

    assert on_ranks(2, start) == [[0, 0, 64], [0, 0, 64]]

"""What a worker gives back where it leaves a start to stock.  No engine is started."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("vllm", reason="needs vLLM")

from fakes.memory import PAGE, FakeMemory
from fakes.ranks import on_ranks
from ullage.errors import MemoryRefused
from ullage.kv.size import Layout, Segment

with warnings.catch_warnings():  # of vLLM's own imports
    warnings.simplefilter("ignore")
    from ullage.vllm_plugin import cpu_worker, placement, warm_up
    from ullage.vllm_plugin.ranks import Ranks

LAYOUT = Layout(
    size_bytes=64,
    capacity_blocks=4,
    segments=(Segment(offset_bytes=0, stride_bytes=16),),
    granularity_bytes=PAGE,
)


def worker(ranks: Ranks) -> Any:
    made = object.__new__(cpu_worker.UllageCPUWorker)
    made._ranks, made._rules, made._cache = ranks, None, None
    made._observer = SimpleNamespace(
        take=lambda: SimpleNamespace(total_bytes=64),
        check_addresses=lambda _: None,
        available_bytes=lambda: 64 if ranks.rank == 0 else 0,
    )
    return made


def test_what_one_rank_reserved_is_closed_where_another_cannot(monkeypatch: pytest.MonkeyPatch):
    memories: list[FakeMemory] = []

    def memory() -> FakeMemory:
        memories.append(FakeMemory())
        return memories[-1]

    monkeypatch.setattr(warm_up, "check_measurable", lambda: None)
    monkeypatch.setattr(cpu_worker, "CpuMemory", memory)
    monkeypatch.setattr(placement, "capacity_config", lambda *_: None)
    monkeypatch.setattr(placement, "layout_of", lambda *_, **__: LAYOUT)

    def start(ranks: Ranks) -> None:
        made = worker(ranks)
        with pytest.raises(MemoryRefused):
            made._ranks.together(made._reserve)
        made._release()

    on_ranks(2, start)
    assert [each.reserved for each in memories] == [{}, {}]

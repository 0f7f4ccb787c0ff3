"""The engine core's tokenizer is there before its KV cache gets a size."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ullage.vllm_plugin import core_tokenizer
from ullage.vllm_plugin.versions import OUR_WORKER, TABLE


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the engine core does, in order; its modules stand in for vLLM's."""
    done: list[str] = []

    class EngineCore:
        def _initialize_kv_caches(self, vllm_config: Any) -> str:
            done.append("sizing")
            return "the engine's own answer"

    core: Any = ModuleType("vllm.v1.engine.core")
    core.EngineCore = EngineCore
    tokenizers: Any = ModuleType("vllm.tokenizers")
    tokenizers.cached_tokenizer_from_config = lambda model_config: done.append(model_config)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.core", core)
    monkeypatch.setitem(sys.modules, "vllm.tokenizers", tokenizers)
    return done


def size(worker: str) -> Any:
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(worker_cls=worker), model_config="tokenizer"
    )
    return sys.modules["vllm.v1.engine.core"].EngineCore()._initialize_kv_caches(config)


def test_it_is_loaded_first_and_the_engine_s_answer_stays(calls: list[str]):
    core_tokenizer.load_first()
    assert size(OUR_WORKER) == "the engine's own answer"
    assert calls == ["tokenizer", "sizing"]


def test_asked_twice_it_is_loaded_once(calls: list[str]):
    core_tokenizer.load_first()
    core_tokenizer.load_first()
    size(OUR_WORKER)
    assert calls == ["tokenizer", "sizing"]


def test_a_stock_start_is_left_as_it_is(calls: list[str]):
    core_tokenizer.load_first()
    size(TABLE[0].stock_worker)
    assert calls == ["sizing"]


def test_a_process_without_an_engine_core_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.core", None)
    loaded = set(sys.modules)
    core_tokenizer.load_first()
    assert set(sys.modules) == loaded  # nothing of vLLM is imported for it

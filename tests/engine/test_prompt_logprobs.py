"""What a request for log probabilities of the prompt is told.  No engine is started."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM")

with warnings.catch_warnings():  # of vLLM's own imports
    warnings.simplefilter("ignore")
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.input_processor import InputProcessor

    from ullage.vllm_plugin import prompt_logprobs, versions


def validated(monkeypatch: pytest.MonkeyPatch, worker: str, logprobs: int | None) -> Any:
    monkeypatch.setattr(InputProcessor, "_validate_params", lambda *_: "stock")
    prompt_logprobs.refuse(allowed=False)
    parallel = SimpleNamespace(worker_cls=worker)
    processor = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel))
    validate: Any = InputProcessor._validate_params
    return validate(processor, SimpleNamespace(prompt_logprobs=logprobs))


def test_it_is_refused_with_what_is_true_whoever_sized_the_cache(monkeypatch: pytest.MonkeyPatch):
    """The worker may have left the start to stock, and the front end is not told."""
    with pytest.raises(VLLMValidationError, match="this start keeps no room for it") as refused:
        validated(monkeypatch, versions.OUR_WORKER, 1)
    assert "Start with ULLAGE_PROMPT_LOGPROBS=1" in str(refused.value)


@pytest.mark.parametrize(("worker", "logprobs"), [("stock", 1), (versions.OUR_WORKER, None)])
def test_other_requests_and_other_workers_are_stock_s(
    monkeypatch: pytest.MonkeyPatch, worker: str, logprobs: int | None
):
    assert validated(monkeypatch, worker, logprobs) == "stock"

"""What the warm-up asks of vLLM's model runner, step by step.  The runner is a recording one."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("vllm", reason="needs vLLM")

from vllm.v1.sample.metadata import SamplingMetadata  # noqa: E402

from ullage.drivers import procfs  # noqa: E402
from ullage.errors import DoesNotFit  # noqa: E402
from ullage.units import MIB  # noqa: E402
from ullage.vllm_plugin import compiled, warm_up  # noqa: E402

VOCABULARY = 100
MAX_MODEL_LEN = 512


class Sampler(torch.nn.Module):
    """Keeps what it was asked to sample."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[SamplingMetadata] = []

    def forward(self, *, logits: Any, sampling_metadata: SamplingMetadata) -> None:
        self.asked.append(sampling_metadata)


@dataclass
class Runner:
    """`bytes_per_token`: memory that a step takes for a moment."""

    max_num_tokens: int = 1024
    requests: int = 8
    bytes_per_token: int = 0
    sampler: Sampler = field(default_factory=Sampler)
    steps: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler_config = SimpleNamespace(max_num_seqs=self.requests)
        self.model_config = SimpleNamespace(max_logprobs=20)
        self.parallel_config = SimpleNamespace(pipeline_parallel_size=1)
        self.input_batch = SimpleNamespace(
            tokens=torch.full((4, 4), 7), names=["a"], request_count=0
        )

    def _dummy_run(self, tokens: int, **how: Any) -> tuple[Any, Any]:
        self.steps.append((tokens, how))
        torch.ones(tokens * self.bytes_per_token, dtype=torch.uint8)
        return torch.zeros(tokens, 1), torch.zeros(self.requests, 1)

    def _dummy_sampler_run(self, hidden: Any) -> None:
        logits = torch.zeros(hidden.shape[0], VOCABULARY)
        self.sampler(logits=logits, sampling_metadata=plain_sampling())


def plain_sampling() -> SamplingMetadata:
    fields = dict.fromkeys(SamplingMetadata.__dataclass_fields__)
    return SamplingMetadata(**{**fields, "no_penalties": True})


def warmed(
    runner: Runner, *, available: int = 1 << 40, laps: list[str] | None = None
) -> warm_up.WarmUp:
    return warm_up.run(
        runner,
        sizes=warm_up.Sizes(max_model_len=MAX_MODEL_LEN, capacity_tokens=8 * 300),
        prompt_logprobs=False,
        available=lambda: available,
        lap=([] if laps is None else laps).append,
    )


def test_the_largest_prefill_and_the_longest_decode_run_with_attention():
    runner = Runner()
    measured = warmed(runner)
    assert [step.name for step in measured.steps] == ["largest prefill", "longest decode"]
    assert all(how["force_attention"] for _, how in runner.steps)
    (prefill, _), (decode, how) = runner.steps[-2:]
    assert prefill == runner.max_num_tokens
    # Eight requests share addresses for 2400 tokens.
    assert (decode, how["uniform_decode"], how["profile_seq_lens"]) == (8, True, 300)


def test_it_tells_what_its_time_went_to_step_by_step():
    laps: list[str] = []
    warmed(Runner(), laps=laps)
    assert laps == [
        "warm-up: small steps",
        "warm-up: foresight of the largest step",
        "warm-up: largest prefill",
        "warm-up: longest decode",
    ]


def test_a_step_of_fewer_tokens_than_a_request_may_have_is_one_long_prefill_beside_decodes():
    runner = Runner(max_num_tokens=512)
    warmed(runner)
    tokens, how = runner.steps[-2]
    assert (tokens, how["create_mixed_batch"]) == (512, True)


def test_sampling_is_asked_for_penalties_over_the_longest_prompts_and_for_log_probabilities():
    runner = Runner()
    warmed(runner)
    for asked in runner.sampler.asked:
        assert asked.no_penalties is False
        assert asked.prompt_token_ids.shape == (8, MAX_MODEL_LEN)
        assert asked.max_num_logprobs == (20 if compiled.is_possible() else None)
    assert len(runner.sampler.asked) == 3  # of the usual work, the prefill and the decode
    assert not runner.sampler._forward_pre_hooks, "the hook stays"


def test_the_peak_of_a_step_is_what_it_took_for_a_moment():
    measured = warmed(Runner(bytes_per_token=256 * 1024))  # 256 MiB in the largest step
    assert measured.transient_bytes == pytest.approx(256 * MIB, abs=16 * MIB)


def test_a_step_that_would_not_fit_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch):
    # Other tests leave this process's heap full of holes, which count as room for a step.
    monkeypatch.setattr(warm_up.malloc, "heap", lambda: None)
    runner = Runner(bytes_per_token=256 * 1024)
    with pytest.raises(DoesNotFit, match=r"A step of 1024 tokens needs 0\.2"):
        warmed(runner, available=200 * MIB)
    assert max(tokens for tokens, _ in runner.steps) == runner.max_num_tokens // 4


def test_the_requests_buffers_get_their_memory_and_keep_what_they_hold():
    runner = Runner()
    runner.input_batch.untouched = torch.empty(128 * MIB, dtype=torch.uint8)
    before_bytes = procfs.rss_bytes("self") or 0
    warmed(runner)
    assert (procfs.rss_bytes("self") or 0) - before_bytes > 120 * MIB
    assert runner.input_batch.tokens.eq(7).all()

"""The largest steps that will really run, and the peak of memory that they need for a moment.

vLLM's own profile run skips attention and takes the plainest sampler.  Here a full
`max_num_batched_tokens` step runs with attention, a decode of `max_num_seqs` requests over the
longest contexts that they can have at once, and the sampler with penalties and log probabilities.
Every block table entry is 0 then, and no slot is mapped: the steps read the null block only, and
write none.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from ullage.drivers import malloc, procfs
from ullage.errors import Unreadable
from ullage.units import gib
from ullage.vllm_plugin import compiled, pipeline, trend
from ullage.vllm_plugin.ranks import ALONE, Ranks

_USUAL_TOKENS: Final = 64
_LEAST_FORESEEN_TOKENS: Final = 512  # smaller steps take little


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step: the process's peak while it ran, as the kernel counted it, and how long it took."""

    name: str
    peak_rss_bytes: int
    kept_rss_bytes: int
    elapsed_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    steps: tuple[Step, ...]
    kept_rss_bytes: int

    @property
    def transient_bytes(self) -> int:
        """What the largest step takes beyond what is kept after all of them."""
        return max(0, max(step.peak_rss_bytes for step in self.steps) - self.kept_rss_bytes)

    def text(self) -> str:
        return ", ".join(
            f"{step.name} {step.elapsed_s:.1f} s, peak {gib(step.peak_rss_bytes, digits=3)}, "
            f"kept {gib(step.kept_rss_bytes, digits=3)}"
            for step in self.steps
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """`capacity_tokens`: what the KV cache's addresses could ever hold, all requests together."""

    max_model_len: int
    capacity_tokens: int

    def context_tokens(self, requests: int) -> int:
        """The longest context that `requests` requests can have at once."""
        return min(self.max_model_len, max(1, self.capacity_tokens // requests))


def run(
    runner: Any,
    *,
    sizes: Sizes,
    prompt_logprobs: bool,
    available: Callable[[], int],
    lap: Callable[[str], None],
    settle_heap: Callable[[], object] = gc.collect,
    ranks: Ranks = ALONE,
) -> WarmUp:
    """Run every step once.  pre: the KV cache is bound and its block 0 has memory.

    First a small one of each kind, unmeasured: it loads and compiles what stays, and a peak that
    came before that would lie hidden below it.  VmHWM is the kernel's own peak: no sampling, so
    none between two samples is missed.  `available`: how many bytes could still be taken, by all
    ranks together.  `lap`: is told what the time until now went to.  `settle_heap`: gives back what
    loading freed and no step will use, so that it does not count as used.

    Raises DoesNotFit where the largest step would not fit, before it runs; Unreadable where
    /proc/self cannot be read or reset.
    """
    usual_work(runner, sizes)
    _touch(runner.input_batch)
    settle_heap()
    lap("warm-up: small steps")
    _foresee(runner, sizes, available, ranks)
    settle_heap()
    lap("warm-up: foresight of the largest step")
    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("largest prefill", lambda: _prefill(runner, sizes, prompt_logprobs)),
        ("longest decode", lambda: _decode(runner, sizes)),
    )
    measured = []
    with torch.inference_mode():
        for name, step in steps:
            measured.append(_measured(name, step, ranks))
            lap(f"warm-up: {name}")
    return WarmUp(steps=tuple(measured), kept_rss_bytes=_known(procfs.rss_bytes("self"), "VmRSS"))


def check_measurable() -> None:
    """Raises Unreadable where the peak of a step cannot be told."""
    if not procfs.reset_peak_rss("self"):
        raise Unreadable(
            "The peak of the warm-up cannot be measured: /proc/self/clear_refs does not work. "
            "Mount /proc read-write."
        )
    _known(procfs.peak_rss_bytes("self"), "VmHWM")


def _foresee(runner: Any, sizes: Sizes, available: Callable[[], int], ranks: Ranks) -> None:
    """Two steps of an eighth and a quarter of the largest one's tokens tell whether it fits.

    All ranks come to the same end, from the same numbers.
    """
    tokens = runner.max_num_tokens
    if tokens < _LEAST_FORESEEN_TOKENS:
        return
    before_bytes = _in_use_bytes()
    with torch.inference_mode():
        small, large = (
            _trial(runner, sizes, part, before_bytes, ranks) for part in (tokens // 8, tokens // 4)
        )
    held_bytes = ranks.gather(lambda: _held_bytes(before_bytes))
    trend.refuse_if_too_large(
        small, large, step_tokens=tokens, available_bytes=available() + sum(held_bytes)
    )


def _in_use_bytes() -> int:
    """Without what the allocator keeps, which a step can have without a page from the kernel."""
    heap = malloc.heap()
    cached_bytes = 0 if heap is None else heap.cached_bytes
    return _known(procfs.rss_bytes("self"), "VmRSS") - cached_bytes


def _held_bytes(before_bytes: int) -> int:
    return max(0, _known(procfs.rss_bytes("self"), "VmRSS") - before_bytes)


def _trial(runner: Any, sizes: Sizes, tokens: int, before_bytes: int, ranks: Ranks) -> trend.Trial:
    context = min(tokens, sizes.max_model_len)
    step = _measured(
        f"prefill of {tokens}",
        lambda: pipeline.step(runner, tokens, profile_seq_lens=context),
        ranks,
    )
    transient_bytes = ranks.gather(lambda: max(0, step.peak_rss_bytes - before_bytes))
    return trend.Trial(step_tokens=tokens, transient_bytes=sum(transient_bytes))


def _touch(input_batch: Any) -> None:
    """Write every buffer of the requests' state, with what it holds.

    They are made for `max_num_seqs` requests of `max_model_len` tokens and get memory page by page,
    as requests fill them.
    """
    for value in vars(input_batch).values():
        if isinstance(value, torch.Tensor):
            value.copy_(value.clone())


def _measured(name: str, step: Callable[[], object], ranks: Ranks) -> Step:
    gc.collect()
    # Together, since one that cannot begin would leave the others waiting inside the step.
    ranks.together(check_measurable)
    start_s = time.monotonic()
    step()
    elapsed_s = time.monotonic() - start_s
    gc.collect()
    return Step(
        name=name,
        peak_rss_bytes=_known(procfs.peak_rss_bytes("self"), "VmHWM"),
        kept_rss_bytes=_known(procfs.rss_bytes("self"), "VmRSS"),
        elapsed_s=elapsed_s,
    )


def _known(value: int | None, name: str) -> int:
    if value is None:
        raise Unreadable(
            f"The peak of the warm-up cannot be measured: /proc/self/status has no {name}. "
            "Mount /proc."
        )
    return value


def _prefill(runner: Any, sizes: Sizes, prompt_logprobs: bool) -> None:
    tokens = runner.max_num_tokens
    requests = min(runner.scheduler_config.max_num_seqs, tokens)
    if tokens - min(requests - 1, tokens // 2) < sizes.max_model_len:
        # One long prefill beside as many decodes as can be.
        hidden, last = pipeline.step(runner, tokens, create_mixed_batch=True)
    else:
        # A step holds more tokens than a request may have: longer contexts than the model's would
        # leave their rows of the block table, and more queries than context have no meaning.
        each = min(tokens // requests, sizes.max_model_len)
        hidden, last = pipeline.step(runner, each * requests, profile_seq_lens=sizes.max_model_len)
    _sample(runner, last, sizes)
    if prompt_logprobs and hidden is not None:
        _score_prompt(runner, hidden)


def _decode(runner: Any, sizes: Sizes) -> None:
    requests = min(runner.scheduler_config.max_num_seqs, runner.max_num_tokens)
    _, last = pipeline.step(
        runner,
        requests,
        uniform_decode=True,
        profile_seq_lens=sizes.context_tokens(requests),
    )
    _sample(runner, last, sizes)


def _sample(runner: Any, last_hidden_states: Any, sizes: Sizes) -> None:
    """None: this stage of a pipeline samples nothing."""
    if last_hidden_states is None:
        return
    with _heaviest_sampling(runner, sizes.max_model_len):
        runner._dummy_sampler_run(last_hidden_states)


@contextmanager
def _heaviest_sampling(runner: Any, max_model_len: int) -> Iterator[None]:
    """Have vLLM's dummy sampling ask for penalties over prompts of `max_model_len` tokens, and for
    as many log probabilities as are allowed.

    vLLM compiles what ranks them; without a compiler no request for them can be served anyway.
    """
    most = runner.model_config.max_logprobs
    scored = compiled.is_possible()

    def ask_for_more(module: Any, args: Any, kwargs: Any) -> Any:
        metadata = kwargs["sampling_metadata"]
        rows = kwargs["logits"].shape[0]
        heavier = replace(
            metadata,
            max_num_logprobs=(most if most >= 0 else kwargs["logits"].shape[1]) if scored else None,
            no_penalties=False,
            prompt_token_ids=torch.zeros((rows, max_model_len), dtype=torch.int64),
            output_token_ids=[[0] for _ in range(rows)],
        )
        return args, {**kwargs, "sampling_metadata": heavier}

    hook = runner.sampler.register_forward_pre_hook(ask_for_more, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _score_prompt(runner: Any, hidden_states: Any) -> None:
    """As `GPUModelRunner._get_prompt_logprobs_dict` does for a prompt that fills a step."""
    logits = runner.model.compute_logits(hidden_states)
    scores = runner.sampler.compute_logprobs(logits)
    targets = torch.zeros(logits.shape[0], dtype=torch.int64)
    runner.sampler.gather_logprobs(scores, max(1, runner.model_config.max_logprobs), targets)


def usual_work(runner: Any, sizes: Sizes) -> None:
    """A short prefill, a short decode and sampling: all the code that serving touches, at once."""
    requests = min(runner.scheduler_config.max_num_seqs, runner.max_num_tokens)
    context = min(_USUAL_TOKENS, sizes.max_model_len)
    tokens = min(_USUAL_TOKENS, runner.max_num_tokens, context * requests)
    with torch.inference_mode():
        pipeline.step(runner, tokens, profile_seq_lens=context)
        _, last = pipeline.step(runner, requests, uniform_decode=True, profile_seq_lens=context)
        _sample(runner, last, sizes)

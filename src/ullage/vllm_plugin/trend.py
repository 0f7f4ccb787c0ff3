"""What a large step will take, from two small ones.  Pure.

Exceeding a limit ends the process, so the largest step must not be the one that finds out.  What a
step takes for a moment grows with its tokens in a straight line: activations, logits, attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ullage.errors import DoesNotFit
from ullage.units import align_down, gib

_ADVICE_TOKENS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A step of `step_tokens` that took `transient_bytes` beyond what there was before it."""

    step_tokens: int
    transient_bytes: int


def predicted_bytes(small: Trial, large: Trial, step_tokens: int) -> int:
    """The straight line through both, at `step_tokens`; never less than what was measured."""
    more_tokens = large.step_tokens - small.step_tokens
    more_bytes = max(0, large.transient_bytes - small.transient_bytes)
    further = step_tokens - large.step_tokens
    return large.transient_bytes + max(0, ceil(more_bytes * further / more_tokens))


def refuse_if_too_large(
    small: Trial, large: Trial, *, step_tokens: int, available_bytes: int
) -> None:
    """Raises DoesNotFit where a step of `step_tokens` would not find the memory that it needs."""
    needed_bytes = predicted_bytes(small, large, step_tokens)
    if needed_bytes <= available_bytes:
        return
    missing = gib(needed_bytes - available_bytes)
    fits = _most_tokens(small, large, available_bytes)
    way_out = f"Set --max-num-batched-tokens to {fits} or less, or raise" if fits else "Raise"
    raise DoesNotFit(
        f"A step of {step_tokens} tokens needs {gib(needed_bytes)} for a moment, and "
        f"{gib(available_bytes)} are available. {way_out} the memory limit by {missing} or more."
    )


def _most_tokens(small: Trial, large: Trial, available_bytes: int) -> int:
    """The most tokens, in steps of 128, that the line has room for; 0 where there are none."""
    more_tokens = large.step_tokens - small.step_tokens
    more_bytes = large.transient_bytes - small.transient_bytes
    if large.transient_bytes > available_bytes or more_bytes <= 0:
        return 0
    further = (available_bytes - large.transient_bytes) * more_tokens // more_bytes
    return align_down(large.step_tokens + further, _ADVICE_TOKENS)

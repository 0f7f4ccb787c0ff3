"""A large step foreseen from two small ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.errors import DoesNotFit
from ullage.units import GIB, MIB
from ullage.vllm_plugin.trend import Trial, predicted_bytes, refuse_if_too_large

lines = st.tuples(st.integers(0, GIB), st.integers(1, MIB))


def on_line(fixed: int, per_token: int, tokens: int) -> Trial:
    return Trial(step_tokens=tokens, transient_bytes=fixed + per_token * tokens)


@given(lines, st.integers(1, 64))
def test_what_lies_on_a_line_is_foreseen_to_the_byte(line, factor):
    small, large = on_line(*line, 256), on_line(*line, 512)
    tokens = 512 * factor
    assert predicted_bytes(small, large, tokens) == on_line(*line, tokens).transient_bytes


@given(st.integers(0, GIB), st.integers(0, GIB))
def test_it_is_never_foreseen_to_take_less_than_was_measured(first, second):
    small = Trial(step_tokens=256, transient_bytes=first)
    large = Trial(step_tokens=512, transient_bytes=second)
    assert predicted_bytes(small, large, 2048) >= second


@given(lines, st.integers(0, 4 * GIB))
def test_the_step_that_the_refusal_names_would_fit_and_a_step_that_fits_is_not_refused(
    line, available
):
    small, large = on_line(*line, 256), on_line(*line, 512)
    needed = on_line(*line, 2048).transient_bytes
    if needed <= available:
        refuse_if_too_large(small, large, step_tokens=2048, available_bytes=available)
        return
    with pytest.raises(DoesNotFit) as refusal:
        refuse_if_too_large(small, large, step_tokens=2048, available_bytes=available)
    advice = re.search(r"--max-num-batched-tokens to (\d+) or less", str(refusal.value))
    if advice is None:
        assert large.transient_bytes > available
    else:
        assert 512 <= int(advice[1]) < 2048
        assert on_line(*line, int(advice[1])).transient_bytes <= available


def test_the_refusal_says_what_is_needed_what_there_is_and_what_would_do():
    with pytest.raises(DoesNotFit) as refusal:
        refuse_if_too_large(
            Trial(step_tokens=256, transient_bytes=128 * MIB),
            Trial(step_tokens=512, transient_bytes=256 * MIB),
            step_tokens=2048,
            available_bytes=512 * MIB,
        )
    assert str(refusal.value) == (
        "A step of 2048 tokens needs 1.00 GiB for a moment, and 0.50 GiB are available. "
        "Set --max-num-batched-tokens to 1024 or less, or raise the memory limit by 0.50 GiB "
        "or more."
    )

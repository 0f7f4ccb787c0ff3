"""Before the weights load: what is refused, and whether the advice is enough."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ullage.accounting.ceiling import Ceiling
from ullage.accounting.leases import promised_bytes, promised_of_more
from ullage.errors import DoesNotFit
from ullage.units import GIB, MIB, parse_size
from ullage.vllm_plugin.early import Request, refuse_if_too_large

BLOCK = 128
BLOCK_BYTES = MIB


def most(available: int) -> Ceiling:
    return Ceiling(source="cgroup1:/job", total_bytes=4 * GIB, available_bytes=available)


def request(blocks: int) -> Request:
    return Request(
        max_model_len=blocks * BLOCK,
        kv_bytes=blocks * BLOCK_BYTES,
        longest_within=lambda size: min(blocks, max(0, size) // BLOCK_BYTES) * BLOCK,
    )


def refusal(weights: int, blocks: int | None, available: int, margin: int = 0) -> str | None:
    try:
        refuse_if_too_large(
            weights_bytes=weights,
            margin_bytes=margin,
            request=None if blocks is None else request(blocks),
            most=most(available),
        )
    except DoesNotFit as error:
        return str(error)
    return None


def test_where_only_the_context_does_not_fit_the_length_that_fits_is_named():
    assert refusal(GIB, 2048, 2 * GIB, margin=128 * MIB) == (
        "The weights take 1.00 GiB, the KV cache of one request of 262144 tokens 2.00 GiB and the "
        "margin 0.12 GiB, and at most 2.00 GiB of 4.00 GiB (cgroup1:/job) can still be taken. Set "
        "--max-model-len to 114688 or less, or raise the memory limit by 1.13 GiB or more."
    )


def test_where_the_weights_do_not_fit_only_more_memory_helps():
    text = refusal(3 * GIB, None, 2 * GIB)
    assert text == (
        "The weights take 3.00 GiB and the margin 0.00 GiB, and at most 2.00 GiB of 4.00 GiB "
        "(cgroup1:/job) can still be taken. Raise the memory limit by 1.00 GiB or more."
    )
    assert "--max-model-len" not in (refusal(3 * GIB, 8, 2 * GIB) or "")


def test_less_than_one_block_of_context_is_no_advice():
    text = refusal(2 * GIB - BLOCK_BYTES // 2, 8, 2 * GIB)
    assert text is not None
    assert "--max-model-len" not in text


@given(
    weights=st.integers(0, 4 * GIB),
    blocks=st.none() | st.integers(1, 4096),
    available=st.integers(0, 4 * GIB),
    margin=st.integers(0, GIB),
)
def test_what_is_advised_is_not_refused_and_what_fits_never_is(
    weights: int, blocks: int | None, available: int, margin: int
):
    text = refusal(weights, blocks, available, margin)
    needed = weights + margin + (0 if blocks is None else blocks * BLOCK_BYTES)
    assert (text is None) == (needed <= available)
    assume(text is not None)
    assert text is not None
    more = re.search(r"memory limit by ([\d.]+ GiB)", text)
    assert more is not None
    assert refusal(weights, blocks, available + parse_size(more[1]) + 1, margin) is None
    shorter = re.search(r"--max-model-len to (\d+) or less", text)
    if shorter is not None:
        assert int(shorter[1]) % BLOCK == 0
        assert refusal(weights, int(shorter[1]) // BLOCK, available, margin) is None


def test_under_a_share_the_limit_is_to_grow_by_as_much_more():
    half = Ceiling(
        source="the share 1/2 of cgroup1:/job",
        total_bytes=2 * GIB,
        available_bytes=GIB,
        share=promised_of_more(Fraction(1, 2)),
    )
    text = r"1.00 GiB of 2.00 GiB \(the share 1/2 of cgroup1:/job\) .* limit by 1\.02 GiB or more"
    with pytest.raises(DoesNotFit, match=text):
        refuse_if_too_large(weights_bytes=GIB + GIB // 2, margin_bytes=0, request=None, most=half)
    old, new = (promised_bytes(limit, Fraction(1, 2)) for limit in (9 * GIB, 9 * GIB + 2 * GIB))
    assert 2 * GIB * half.share <= new - old


def test_a_start_that_fits_exactly_is_not_refused():
    assert refusal(GIB, 1024, 2 * GIB) is None
    with pytest.raises(DoesNotFit):
        refuse_if_too_large(
            weights_bytes=GIB + 1, margin_bytes=0, request=request(1024), most=most(2 * GIB)
        )

"""Blocks, tokens and lengths: of starts that were logged, and what always holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.kv.capacity import Capacity, Rank, capacity
from ullage.kv.spec import Demand, FullAttention, SlidingWindow, State
from ullage.units import GIB, MIB

DEMAND = Demand(max_model_len=8192, in_flight_tokens=16_384)


def full(kv_heads: int, head_dim: int = 128, *, block_tokens: int = 16) -> FullAttention:
    return FullAttention(
        block_tokens=block_tokens,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=head_dim,
        dtype="bfloat16",
        content_bytes=2 * head_dim * 2,
    )


def of_alike(count: int, kv_heads: int, available_bytes: int, demand: Demand = DEMAND) -> Capacity:
    layers = {str(number): full(kv_heads) for number in range(count)}
    return capacity(layers, [Rank(layers=tuple(layers), available_bytes=available_bytes)], demand)


def test_llama_8b_takes_two_mebibytes_a_block():
    found = of_alike(32, 8, 10 * GIB)
    assert found.block_bytes == (2 * MIB,)
    assert (found.blocks, found.tokens) == (5120, 81_920)
    assert found.concurrency == 10.0


def test_a_sliding_layer_needs_its_window_and_what_is_in_flight():
    """18 full and 18 sliding layers of 2,048 bytes a token, 131,072 tokens, batches of 1,024: 4.54
    GiB (vLLM issue 27508)."""
    one = full(8, 64)
    window = SlidingWindow(
        block_tokens=16,
        kv_heads=8,
        head_dim=64,
        value_head_dim=64,
        dtype="bfloat16",
        content_bytes=256,
        window_tokens=128,
    )
    layers = {str(number): one if number % 2 else window for number in range(36)}
    found = capacity(
        layers,
        [Rank(layers=tuple(layers), available_bytes=5 * GIB)],
        Demand(max_model_len=131_072, in_flight_tokens=1024),
    )
    assert found.needed_bytes(0) / GIB == pytest.approx(4.5401, abs=5e-5)


def test_a_hybrid_is_printed_by_its_concurrency():
    """16 attention layers beside 48 states, blocks of 784 tokens, 1,487 of them, requests of 32,768
    tokens: 33.04 at once (vLLM issue 40691)."""
    page_bytes = 784 * 4096
    attention = replace(full(4, 256, block_tokens=784), content_bytes=1024)
    state = State(
        block_tokens=784,
        shapes=((3, 10_240), (48, 128, 128)),
        element_bytes=(2, 4),
        padded_page_bytes=page_bytes,
    )
    layers = {str(n): attention if n % 4 == 3 else state for n in range(64)}
    found = capacity(
        layers,
        [Rank(layers=tuple(layers), available_bytes=1487 * 16 * page_bytes)],
        Demand(max_model_len=32_768, in_flight_tokens=16_384),
    )
    assert (found.blocks, found.request_blocks) == (1487, 45)
    assert found.concurrency == pytest.approx(33.04, abs=0.005)


def test_all_ranks_have_the_blocks_of_the_one_with_the_fewest():
    layers = {str(number): full(8) for number in range(32)}
    first, second = tuple(layers)[:20], tuple(layers)[20:]
    ranks = [
        Rank(layers=first, available_bytes=10 * GIB),
        Rank(layers=second, available_bytes=10 * GIB),
    ]
    assert capacity(layers, ranks, DEMAND).blocks == 10 * GIB // (20 * 64 * 1024)


def test_a_number_of_blocks_that_is_given_counts_whatever_is_there():
    layers = {"0": full(8)}
    found = capacity(layers, [Rank(layers=("0",), available_bytes=0)], DEMAND, blocks=600)
    assert (found.blocks, found.fits) == (600, True)


def test_a_model_that_keeps_nothing_has_one_block_and_no_tokens():
    found = capacity({}, [Rank(layers=(), available_bytes=GIB)], DEMAND)
    assert (found.blocks, found.tokens, found.concurrency, found.fits) == (1, None, None, True)


@given(st.integers(1, 80), st.integers(1, 16), st.integers(0, 4 * GIB), st.integers(1, 200_000))
def test_the_longest_request_fits_and_one_token_more_does_not(
    count, kv_heads, available_bytes, length
):
    found = of_alike(count, kv_heads, available_bytes, replace(DEMAND, max_model_len=length))
    longest = found.longest()
    assert found.fits == (longest == length)
    if longest:
        assert replace(found, demand=replace(DEMAND, max_model_len=longest)).fits
    if longest < length:
        assert not replace(found, demand=replace(DEMAND, max_model_len=longest + 1)).fits

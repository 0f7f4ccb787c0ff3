"""Layers into groups: shapes of well-known models, and what always holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.errors import Unsupported
from ullage.kv.groups import grouped
from ullage.kv.spec import Demand, FullAttention, LatentAttention, SlidingWindow, Spec, State

FULL = FullAttention(
    block_tokens=16,
    kv_heads=4,
    head_dim=128,
    value_head_dim=128,
    dtype="bfloat16",
    content_bytes=512,
)
SLIDING = SlidingWindow(
    block_tokens=16,
    kv_heads=4,
    head_dim=128,
    value_head_dim=128,
    dtype="bfloat16",
    content_bytes=512,
    window_tokens=1024,
)
LATENT = LatentAttention(
    block_tokens=64,
    kv_heads=1,
    head_dim=576,
    value_head_dim=0,
    dtype="bfloat16",
    content_bytes=1152,
)
STATE = State(block_tokens=16, shapes=((3, 1024), (16, 128)), element_bytes=(2, 4))
DEMAND = Demand(max_model_len=131_072, in_flight_tokens=16_384)


def layers(*specs: Spec) -> dict[str, Spec]:
    return {str(number): spec for number, spec in enumerate(specs)}


def counts(*specs: Spec) -> list[int]:
    return [len(group.layers) for group in grouped(layers(*specs))]


def test_layers_that_are_alike_are_one_group():
    assert counts(*[FULL] * 32) == [32]


def test_one_full_layer_to_five_sliding_ones_makes_six_groups():
    """Gemma 3."""
    assert counts(*([SLIDING] * 5 + [FULL]) * 8) == [8] * 6


def test_kinds_of_nearly_as_many_layers_are_padded_to_the_longest():
    """gpt-oss with a draft layer: 12 sliding, 13 full."""
    found = grouped(layers(*[SLIDING] * 12, *[FULL] * 13))
    assert [len(group.layers) for group in found] == [12, 13]
    assert max(group.block_bytes for group in found) == 13 * FULL.page_bytes


def test_a_state_is_padded_to_the_pages_of_attention():
    found = grouped(layers(*[STATE] * 3, FULL))
    assert {spec.page_bytes for group in found for spec in group.specs} == {FULL.page_bytes}


def test_smaller_pages_get_more_tokens():
    half = replace(SLIDING, kv_heads=2)
    (_, small) = grouped(layers(FULL, half))
    assert [spec.block_tokens for spec in small.specs] == [32]
    assert small.request_blocks(DEMAND) == -(-(1023 + 16_384) // 32) + 1


def test_sliding_layers_beside_latents_of_another_size_keep_everything():
    """The engine has no pages of two sizes there."""
    (group,) = grouped(layers(LATENT, LATENT, replace(SLIDING, block_tokens=64, kv_heads=16)))
    assert {spec.block_tokens for spec in group.specs} == {64}
    assert group.request_blocks(DEMAND) == 131_072 // 64


def test_what_cannot_be_made_one_size_is_refused():
    with pytest.raises(Unsupported, match=r"keep 73728, 131072 bytes in a block.*draft model out"):
        grouped(layers(LATENT, replace(FULL, kv_heads=16)))


def test_no_layers_are_no_groups():
    assert grouped({}) == ()


@given(st.lists(st.sampled_from([FULL, SLIDING, STATE]), min_size=1, max_size=60))
def test_every_layer_is_in_one_group_and_all_pages_are_of_one_size(specs):
    found = grouped(layers(*specs))
    names = [name for group in found for name in group.layers]
    assert sorted(names) == sorted(layers(*specs))
    assert len({spec.page_bytes for group in found for spec in group.specs}) == 1


@given(st.integers(1, 200_000), st.integers(1, 20_000))
def test_a_window_never_needs_more_than_one_block_more_than_keeping_everything(length, in_flight):
    demand = Demand(max_model_len=length, in_flight_tokens=in_flight)
    assert SLIDING.request_blocks(demand) <= FULL.request_blocks(demand) + 1

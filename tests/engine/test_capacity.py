"""Blocks, tokens and the longest request: as vLLM's own planner counts them, for every rank."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="needs vLLM")

from planner import config, demands, models, register, their_spec
from vllm.v1.core import kv_cache_utils

from ullage.errors import Unsupported
from ullage.kv.capacity import Rank, capacity
from ullage.units import GIB, MIB


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    models(),
    demands,
    st.lists(st.integers(1 * MIB, 40 * GIB), min_size=1, max_size=3),
    st.one_of(st.none(), st.none(), st.integers(2, 5000)),
)
def test_blocks_tokens_and_refusals_are_those_of_vllm(layers, demand, available, override):
    """Stages of a pipeline have parts of the layers, and memory of their own."""
    names = list(layers)
    assume(len(names) >= len(available))
    stages = [names[number :: len(available)] for number in range(len(available))]
    try:
        ours = capacity(
            layers,
            [
                Rank(layers=tuple(stage), available_bytes=size)
                for stage, size in zip(stages, available, strict=True)
            ],
            demand,
            blocks=override,
        )
    except Unsupported:
        assume(False)
    vllm_config = config(demand, blocks=override)
    specs = [{name: their_spec(layers[name]) for name in stage} for stage in stages]
    planned = None
    with suppress(ValueError):  # it refuses so
        planned = kv_cache_utils.get_kv_cache_configs(vllm_config, specs, available)
    assert ours.fits == (planned is not None)
    if planned is not None:
        assert {each.num_blocks for each in planned} == {ours.blocks}
        counted = kv_cache_utils.get_kv_cache_capacity(vllm_config, planned[0])
        assert (ours.tokens, ours.concurrency) == counted


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models(), demands, st.integers(1 * MIB, 4 * GIB))
def test_the_longest_request_that_fits_is_the_one_that_vllm_names(layers, demand, available):
    try:
        ours = capacity(layers, [Rank(layers=tuple(layers), available_bytes=available)], demand)
    except Unsupported:
        assume(False)
    assume(not ours.fits)
    specs = [{name: their_spec(layer) for name, layer in layers.items()}]
    with pytest.raises(ValueError, match=r"KV cache|cache blocks") as refused:
        kv_cache_utils.get_kv_cache_configs(config(demand), specs, [available])
    named = re.search(r"estimated maximum model length is (\d+)", str(refused.value))
    assert ours.longest() == (0 if named is None else int(named[1]))

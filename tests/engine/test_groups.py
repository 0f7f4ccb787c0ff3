"""Groups of layers: the same as vLLM's own planner makes of the same layers, whatever they are."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

pytest.importorskip("vllm", reason="needs vLLM")

from planner import LAYOUT, config, demands, models, register, their_spec
from vllm.utils.math_utils import cdiv
from vllm.v1.core import kv_cache_utils

from ullage.errors import Unsupported
from ullage.kv import groups


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models(), demands)
def test_groups_blocks_and_what_a_request_needs_are_those_of_vllm(layers, demand):
    vllm_config = config(demand)
    try:
        planned = kv_cache_utils.get_kv_cache_groups(
            vllm_config, {name: their_spec(layer) for name, layer in layers.items()}
        )
    except NotImplementedError:
        with pytest.raises(Unsupported):
            groups.grouped(layers)
        return
    ours = groups.grouped(layers)
    assert [set(group.layers) for group in ours] == [set(group.layer_names) for group in planned]
    assert max(group.block_bytes for group in ours) == kv_cache_utils._get_kv_cache_bytes_per_block(
        planned, LAYOUT
    )
    assert [group.request_blocks(demand) for group in ours] == [
        cdiv(
            group.kv_cache_spec.max_memory_usage_bytes(vllm_config),
            group.kv_cache_spec.page_size_bytes,
        )
        for group in planned
    ]

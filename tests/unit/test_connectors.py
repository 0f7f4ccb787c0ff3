"""What is kept free for the copies that a KV connector makes, on made-up configurations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ullage.kv.size import Layout, Segment
from ullage.vllm_plugin.connectors import COPIES, copied_bytes

STRIDES = (1000, 3000)
LAYOUT = Layout(
    size_bytes=10 * sum(STRIDES),
    capacity_blocks=10,
    segments=(
        Segment(offset_bytes=0, stride_bytes=STRIDES[0]),
        Segment(offset_bytes=10 * STRIDES[0], stride_bytes=STRIDES[1]),
    ),
    granularity_bytes=4096,
)


def config(connector: str | None) -> Any:
    transfer = SimpleNamespace(kv_connector=connector, kv_connector_module_path=None)
    return SimpleNamespace(
        kv_transfer_config=transfer if connector else None,
        model_config=SimpleNamespace(max_model_len=300),
        cache_config=SimpleNamespace(block_size=128),
    )


def test_without_a_connector_nothing_is_kept():
    assert copied_bytes(config(None), LAYOUT) == 0


@pytest.mark.parametrize("name", COPIES)
def test_room_is_kept_for_the_largest_layer_s_blocks_of_the_longest_prompt(name):
    assert copied_bytes(config(name), LAYOUT) == COPIES[name] * 3 * 3000

"""KV connectors: which ones are handled, what they take, and when they are made.

Stock makes its connector together with the KV cache.  Here it is made once, after the last commit,
and sees views whose storages are exactly the committed bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from ullage.kv.size import Layout
from ullage.units import ceil_div
from ullage.vllm_plugin.replaced import replaced

COPIES: Final = {
    # Moves one layer of one prompt at a time between the cache and a file.  Measured: one copy, and
    # it holds the one before until the next is there.
    "ExampleConnector": 2,
    # Fills one layer of one prompt at a time with made-up values: for a cache of one byte an
    # element they are drawn in four and converted.
    "DecodeBenchConnector": 5,
}
"""The handled connectors, and how many copies of one layer of the longest prompt each one holds.

They have no memory pool of their own, and find blocks by their number in the views they are given,
never by the offsets in `kv_cache_tensors`, which are those of a cache without room to grow.
"""


def not_handled(config: Any) -> str | None:
    """The name of a configured connector that is left to stock; None: there is none."""
    transfer = config.kv_transfer_config
    if transfer is None:
        return None
    if transfer.kv_connector_module_path is not None:
        return f"{transfer.kv_connector} of {transfer.kv_connector_module_path}"
    return None if transfer.kv_connector in COPIES else str(transfer.kv_connector)


def copied_bytes(config: Any, layout: Layout) -> int:
    """What the connector holds for a moment, beside the step that it works for."""
    if config.kv_transfer_config is None:
        return 0
    blocks = ceil_div(config.model_config.max_model_len, config.cache_config.block_size)
    layer_bytes = blocks * max(segment.stride_bytes for segment in layout.segments)
    return COPIES[config.kv_transfer_config.kv_connector] * layer_bytes


def none_yet() -> AbstractContextManager[None]:
    """`Worker.initialize_from_config` makes no connector inside: the blocks have no memory yet."""
    return replaced(
        "vllm.v1.worker.gpu_worker",
        "ensure_kv_transfer_initialized",
        lambda stock: lambda vllm_config, kv_cache_config: None,
    )


def make(vllm_config: Any, kv_cache_config: Any, views: Mapping[str, Any]) -> None:
    """The configured connector, if there is one, over the committed `views` of all layers.

    The calls are those of `Worker.initialize_from_config` and `GPUModelRunner.initialize_kv_cache`.
    """
    transfer = importlib.import_module("vllm.distributed.kv_transfer")
    transfer.ensure_kv_transfer_initialized(vllm_config, kv_cache_config)
    if transfer.has_kv_transfer_group():
        connector = transfer.get_kv_transfer_group()
        connector.register_kv_caches(views)
        connector.set_host_xfer_buffer_ops(
            importlib.import_module(
                "vllm.distributed.kv_transfer.kv_connector.utils"
            ).copy_kv_blocks
        )

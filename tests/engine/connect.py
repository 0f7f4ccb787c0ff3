"""One engine in this process with a KV connector: outputs and what the connector was given, as JSON
in a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 700  # five whole blocks of 128 tokens
OUTPUT_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("result", type=Path)
    parser.add_argument("connector")
    parser.add_argument("extra", type=json.loads)
    options = parser.parse_args()
    options.result.write_text(json.dumps(generate(options)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def generate(options: argparse.Namespace) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    seen = watch(options.connector)
    llm = LLM(
        options.model,
        gpu_memory_utilization=0.15,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_transfer_config={
            "kv_connector": options.connector,
            "kv_role": "kv_both",
            "kv_connector_extra_config": options.extra,
        },
    )
    prompt = [(position * 31) % 1000 for position in range(PROMPT_TOKENS)]
    sampling = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    (output,) = llm.generate({"prompt_token_ids": prompt}, sampling)
    config = llm.llm_engine.vllm_config
    return {
        **seen,
        "outputs": list(output.outputs[0].token_ids),
        "external_tokens": output.num_cached_tokens,
        "worker": config.parallel_config.worker_cls,
        "blocks": config.cache_config.num_gpu_blocks,
    }


def watch(name: str) -> dict[str, Any]:
    """Filled in as the connector is made and given the caches; nothing about it is changed."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    kind = KVConnectorFactory.get_connector_class_by_name(name)
    seen: dict[str, Any] = {"made": 0, "storages": []}
    init, register = kind.__init__, kind.register_kv_caches

    def __init__(self: Any, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        seen["made"] += role is KVConnectorRole.WORKER
        init(self, vllm_config, role, kv_cache_config)

    def register_kv_caches(self: Any, kv_caches: Any) -> None:
        seen["storages"].append(
            [
                {
                    "blocks": view.shape[0],
                    "bytes": view.untyped_storage().nbytes(),
                    "block_bytes": view[0].numel() * view.element_size(),
                    "starts_at_storage": view.data_ptr() == view.untyped_storage().data_ptr(),
                }
                for view in kv_caches.values()
            ]
        )
        register(self, kv_caches)

    kind.__init__, kind.register_kv_caches = __init__, register_kv_caches
    return seen


if __name__ == "__main__":
    main()

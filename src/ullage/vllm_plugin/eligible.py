"""May this start be handled?  The first reason why not, in words that a user can act on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ullage.vllm_plugin.versions import EngineRules

Check = tuple[str, Callable[[Any], bool]]

_CHECKS: Final[Sequence[Check]] = (
    (
        "an explicit KV cache size is given and wins (--kv-cache-memory-bytes, "
        "VLLM_CPU_KVCACHE_SPACE)",
        lambda config: config.cache_config.kv_cache_memory_bytes is not None,
    ),
    (
        "an explicit number of blocks is given and wins (--num-gpu-blocks-override)",
        lambda config: config.cache_config.num_gpu_blocks_override is not None,
    ),
    (
        "the model is a pooling or encoder-only model",
        lambda config: (
            config.model_config is None
            or config.model_config.runner_type != "generate"
            or config.model_config.is_encoder_decoder
        ),
    ),
    (
        "several ranks share the host (--tensor-parallel-size, --pipeline-parallel-size, "
        "--data-parallel-size above 1)",
        lambda config: config.parallel_config.world_size_across_dp > 1,
    ),
    (
        "a KV connector is configured (--kv-transfer-config)",
        lambda config: config.kv_transfer_config is not None,
    ),
    (
        "speculative decoding is configured (--speculative-config)",
        lambda config: config.speculative_config is not None,
    ),
    (
        "the V2 model runner is in use (VLLM_USE_V2_MODEL_RUNNER)",
        lambda config: bool(config.use_v2_model_runner),
    ),
)


def reason_against(config: Any, rules: EngineRules) -> str | None:
    """None: the start is handled.  `config` is a VllmConfig after the platform has filled it in."""
    worker = config.parallel_config.worker_cls
    if worker != rules.stock_worker:
        return f"the worker class is {worker}, not {rules.stock_worker} (--worker-cls)"
    for reason, applies in _CHECKS:
        if applies(config):
            return reason
    return None

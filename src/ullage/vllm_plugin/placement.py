"""vLLM's KV cache configuration as our layout, and our memory as vLLM's tensors."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs, create_kv_cache_views
from vllm.v1.worker.utils import bind_kv_cache, map_kv_caches_to_kernel_blocks

from ullage.errors import Unsupported
from ullage.kv.cache import KVCache
from ullage.kv.size import Layout, Placement, Segment, layout
from ullage.kv.tensor import flat
from ullage.vllm_plugin.ranks import Ranks
from ullage.vllm_plugin.versions import EngineRules


def capacity_config(worker: Any, rules: EngineRules, memory_bytes: int, ranks: Ranks) -> Any:
    """vLLM's own plan for `memory_bytes`: the most that could ever fit, only addresses.

    As `get_kv_cache_configs` makes it: the layers of all ranks are grouped together, and a rank of
    a pipeline gets its own layers of each group.  Raises Unsupported where one has no layer.
    """
    planner = importlib.import_module(rules.planner)
    own = dict(worker.get_kv_cache_spec())
    all_ranks = ranks.gather(lambda: own)
    if not all(all_ranks):
        raise Unsupported("A pipeline stage has no KV cache, and such pipelines are not handled.")
    every = {name: spec for specs in all_ranks for name, spec in specs.items()}
    groups = planner._project_kv_cache_groups_to_worker(
        planner.get_kv_cache_groups(worker.vllm_config, every), own
    )
    return planner.get_kv_cache_config_from_groups(worker.vllm_config, groups, memory_bytes)


def check_planned(
    worker: Any, rules: EngineRules, capacity: Any, planned: Any, block_bytes: int
) -> None:
    """Raises Unsupported where the engine has not planned what `capacity` is for more blocks of."""
    planner = importlib.import_module(rules.planner)
    expected = planner.get_kv_cache_config_from_groups(
        worker.vllm_config, capacity.kv_cache_groups, planned.num_blocks * block_bytes
    )
    if expected.kv_cache_tensors != planned.kv_cache_tensors:
        raise Unsupported(
            f"The engine plans {len(planned.kv_cache_tensors)} KV cache tensors for "
            f"{planned.num_blocks} blocks otherwise than its worker did. Unset ULLAGE to start as "
            "stock does."
        )


def layout_of(config: Any, *, granularity_bytes: int) -> Layout:
    """Raises Unsupported for a cache that is not one allocation with a prefix for each block."""
    tensors = config.kv_cache_tensors
    sizes = {tensor.size for tensor in tensors}
    if any(tensor.host_resident for tensor in tensors) or len(sizes) != 1:
        raise Unsupported(f"The KV cache has {len(sizes)} allocations, and one is handled.")
    specs = [_spec(config, tensor) for tensor in tensors]
    if not all(spec.has_layer_views for spec in specs):
        raise Unsupported("A KV cache layer has no view of its own, and such caches do not grow.")
    placements = [
        Placement(
            layers=tuple(tensor.layers),
            offset_bytes=tensor.offset,
            layer_stride_bytes=tensor.layer_stride,
            block_stride_bytes=tensor.block_stride,
        )
        for tensor in tensors
    ]
    try:
        return layout(
            placements,
            size_bytes=sizes.pop(),
            capacity_blocks=config.num_blocks,
            granularity_bytes=granularity_bytes,
        )
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _spec(config: Any, tensor: Any) -> Any:
    name = tensor.layers[0]
    group = next(g for g in config.kv_cache_groups if name in g.layer_names)
    spec = group.kv_cache_spec
    return spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


class ServedFrom(TorchFunctionMode):
    """Answers the one `torch.zeros(size, dtype=int8)` of vLLM's allocation with our addresses.

    `vllm.v1.worker.utils.allocate_kv_cache` makes that call once, inside this context.  Leaving
    without having answered it raises Unsupported: the cache would be somebody else's memory.
    """

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self._cache = cache
        self._answered = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        size_bytes = self._cache.layout.size_bytes
        if func is torch.zeros and args[:1] == (size_bytes,) and kwargs.get("dtype") is torch.int8:
            self._answered += 1
            return flat(self._cache.address, size_bytes, owner=self._cache)
        return func(*args, **kwargs)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, traceback)
        if exc is None and self._answered != 1:
            raise Unsupported(
                f"vLLM allocated its KV cache in {self._answered} calls that ullage recognises, "
                "and 1 is expected. This version of vLLM is not handled."
            )


def bind_committed(
    runner: Any, config: Any, cache: KVCache, layout_name: Any
) -> dict[str, torch.Tensor]:
    """Give every layer a view of the committed blocks, same addresses, exact storages: these views.

    `config` is the capacity's configuration, whose strides the addresses have.  The calls are those
    of `GPUModelRunner.initialize_kv_cache_tensors`.
    """
    views = _committed_views(runner, config, cache, layout_name)
    for name, target in runner.shared_kv_cache_layers.items():
        views[name] = views[target]
    attention_groups = [group for groups in runner.attn_groups for group in groups]
    two_modules = runner.model_config.hf_config.model_type == "longcat_flash"
    runner.kv_caches.clear()
    bind_kv_cache(
        views,
        runner.compilation_config.static_forward_context,
        runner.kv_caches,
        2 if two_modules else 1,
        kv_cache_groups=runner.kv_cache_config.kv_cache_groups,
        layer_kv_caches=map_kv_caches_to_kernel_blocks(views, attention_groups),
    )
    return views


def _committed_views(runner: Any, config: Any, cache: KVCache, layout_name: Any) -> dict[str, Any]:
    blocks = cache.committed_blocks
    raw = {
        segment: flat(cache.segment_address(segment), blocks * segment.stride_bytes, owner=cache)
        for segment in cache.layout.segments
    }
    views: dict[str, Any] = {}
    for tensor in config.kv_cache_tensors:
        kernel_block_size = _kernel_block_size(runner, tensor)
        for index, name in enumerate(tensor.layers):
            start = tensor.offset + index * tensor.layer_stride
            segment = _segment_at(cache.layout, start)
            one_layer = replace(tensor, layers=[name], offset=start - segment.offset_bytes)
            views[name] = create_kv_cache_views(
                raw[segment],
                _spec(config, one_layer),
                blocks,
                layout_name,
                one_layer,
                kernel_block_size=kernel_block_size,
            )[0]
    return views


def _kernel_block_size(runner: Any, tensor: Any) -> int | None:
    groups = runner.kv_cache_config.kv_cache_groups
    index = next(i for i, group in enumerate(groups) if tensor.layers[0] in group.layer_names)
    sizes: list[int] = runner._kernel_block_sizes
    return sizes[index] if index < len(sizes) else None


def _segment_at(whole: Layout, offset_bytes: int) -> Segment:
    return next(
        segment for segment in reversed(whole.segments) if segment.offset_bytes <= offset_bytes
    )

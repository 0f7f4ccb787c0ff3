"""oneDNN's compiled kernels, made anew for each number of tokens in a step and each weight shape.

A kernel takes about 0.3 MiB of the heap.  oneDNN keeps 1024 of them unless told otherwise, and each
of vLLM's layers holds the last ones that it used: mixed traffic fills both, with hundreds of MiB,
long after the KV cache has its size.  So oneDNN is told to keep few, and there is room for what the
layers hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any, Final

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ullage.drivers import malloc
from ullage.vllm_plugin.versions import KERNELS_KEPT, KERNELS_KEPT_UNLESS_TOLD

# What a layer holds: `create_onednn_mm(..., 32)` in model_executor/layers/utils.py, and the default
# of `create_onednn_scaled_mm` (_custom_ops.py) for quantized ones.
_HELD: Final = 32
_HELD_BY_QUANTIZED: Final = 128
# Beyond a kernel's own blocks: free pieces between them, and code outside of the heap (measured of
# 512 kernels: 345 KiB each, 301 of them in its blocks).
_WITH_PIECES: Final = Fraction(5, 4)
_TRIAL_TOKENS: Final = 3  # of no other step of the warm-up, so that its kernels are new


def to_come_bytes(model: Any, dtype: torch.dtype, environment: Mapping[str, str]) -> int:
    """What the kernels of steps of other sizes still take, at their most.  pre: `model` has its
    weights.

    All layers of one shape share a kernel, by way of oneDNN's cache.  One layer of each shape makes
    one here, which tells how large it is; layers that other libraries compute make none.
    """
    kept = max(map(_number, (environment.get(name) for name in KERNELS_KEPT)))
    sizes = []
    held_bytes = 0
    with torch.inference_mode():
        for layer in _one_of_each_shape(model):
            size_bytes = _kernel_bytes(layer, dtype)
            sizes.append(size_bytes)
            held_bytes += size_bytes * _held(layer)
    return ceil(_WITH_PIECES * (held_bytes + kept * max(sizes, default=0)))


def _one_of_each_shape(model: Any) -> Iterator[Any]:
    seen = set()
    for layer in _multiplying(model):
        key = (type(layer.quant_method), _inputs(layer), _outputs(layer), _bias(layer) is None)
        if key not in seen:
            yield layer
        seen.add(key)


def _multiplying(model: Any) -> Iterator[Any]:
    """Its linear layers and its head, which may be the embedding."""
    for module in model.modules():
        head = getattr(module, "lm_head", None)
        if isinstance(head, VocabParallelEmbedding):
            yield head
        if isinstance(module, LinearBase) and module.quant_method is not None:
            yield module


def _kernel_bytes(layer: Any, dtype: torch.dtype) -> int:
    """0 where the allocator does not say."""
    tokens = torch.zeros(_TRIAL_TOKENS, _inputs(layer), dtype=dtype)
    before = malloc.heap()
    # As the layer's `forward` does, without what ranks exchange.
    layer.quant_method.apply(layer, tokens, _bias(layer))
    after = malloc.heap()
    if before is None or after is None:
        return 0
    return max(0, after.in_use_bytes - before.in_use_bytes)


def _inputs(layer: Any) -> int:
    if isinstance(layer, VocabParallelEmbedding):
        return int(layer.embedding_dim)
    return int(getattr(layer, "input_size_per_partition", layer.input_size))


def _outputs(layer: Any) -> int:
    if isinstance(layer, VocabParallelEmbedding):
        return int(layer.num_embeddings)
    return int(layer.output_size)


def _bias(layer: Any) -> torch.Tensor | None:
    return None if getattr(layer, "skip_bias_add", False) else getattr(layer, "bias", None)


def _held(layer: Any) -> int:
    quantized = isinstance(layer, LinearBase) and not isinstance(
        layer.quant_method, UnquantizedLinearMethod
    )
    return _HELD_BY_QUANTIZED if quantized else _HELD


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.strip().isdecimal() else KERNELS_KEPT_UNLESS_TOLD

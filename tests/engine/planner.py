"""Layers in vLLM's terms, for its own planner, and models to ask it about."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("vllm", reason="needs vLLM")

with warnings.catch_warnings():
    # What vLLM imports is deprecated by torch.
    warnings.simplefilter("ignore", DeprecationWarning)
    from vllm.v1 import kv_cache_interface as theirs
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_layout import KVCacheLayout

from ullage.kv import spec  # noqa: E402

LAYOUT = KVCacheLayout.LBHNC
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "uint8": torch.uint8}


def config(demand: spec.Demand, *, blocks: int | None = None) -> Any:
    """What the planner reads of a VllmConfig."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_encoder_input_tokens=demand.encoder_tokens,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            mamba_cache_mode=demand.state_mode,
            get_resolved_kv_cache_layout=lambda: LAYOUT,
            num_gpu_blocks_override=blocks,
            prefix_cache_retention_interval=None,
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=1),
        model_config=SimpleNamespace(
            max_model_len=demand.max_model_len, original_max_model_len=demand.max_model_len
        ),
        max_in_flight_tokens=demand.in_flight_tokens,
        speculative_config=None,
        num_prefill_lookahead_tokens=0,
    )


def register() -> None:
    """What the engine does before it plans."""
    register_all_kvcache_specs(config(spec.Demand(max_model_len=1, in_flight_tokens=1)))


def their_spec(layer: spec.Spec) -> Any:
    if isinstance(layer, spec.State):
        return theirs.MambaSpec(
            block_size=layer.block_tokens,
            shapes=layer.shapes,
            dtypes=tuple(
                {2: torch.bfloat16, 4: torch.float32}[size] for size in layer.element_bytes
            ),
            page_size_padded=layer.padded_page_bytes,
            num_speculative_blocks=layer.speculative_blocks,
            num_prefill_checkpoint_blocks=layer.checkpoint_blocks,
        )
    common: dict[str, Any] = {
        "block_size": layer.block_tokens,
        "num_kv_heads": layer.kv_heads,
        "head_size": layer.head_dim,
        "dtype": DTYPES[layer.dtype],
    }
    match layer:
        case spec.LatentAttention():
            return theirs.MLAAttentionSpec(**common)
        case spec.FullAttention():
            return theirs.FullAttentionSpec(
                **common,
                sliding_window=layer.window_tokens,
                attention_chunk_size=layer.chunk_tokens,
            )
        case spec.SlidingWindow():
            return theirs.SlidingWindowSpec(
                **common,
                sliding_window=layer.window_tokens,
                extra_retained_tokens=layer.retained_tokens,
            )
        case spec.ChunkedLocal():
            return theirs.ChunkedLocalAttentionSpec(
                **common, attention_chunk_size=layer.chunk_tokens
            )
        case spec.CrossAttention():
            return theirs.CrossAttentionSpec(**common)
    raise AssertionError(layer)


@st.composite
def kinds(draw: st.DrawFn) -> spec.Spec:
    """Layers as models have them: few sizes, so that some fit together and some do not."""
    block_tokens = draw(st.sampled_from([16, 16, 16, 32]))
    if draw(st.integers(0, 4)) == 0:
        return spec.State(
            block_tokens=draw(st.sampled_from([16, 528])),
            shapes=((3, draw(st.sampled_from([64, 100]))), (draw(st.sampled_from([2, 8])), 128)),
            element_bytes=(2, 4),
            speculative_blocks=draw(st.sampled_from([0, 0, 3])),
        )
    latent = draw(st.integers(0, 5)) == 0
    dtype = draw(st.sampled_from(["bfloat16", "bfloat16", "float32", "uint8"]))
    dim = 576 if latent else draw(st.sampled_from([64, 128, 96]))
    size_bytes = {"bfloat16": 2, "float32": 4, "uint8": 1}[dtype]
    common: dict[str, Any] = {
        "block_tokens": block_tokens,
        "kv_heads": 1 if latent else draw(st.sampled_from([1, 2, 8])),
        "head_dim": dim,
        "value_head_dim": 0 if latent else dim,
        "dtype": dtype,
        "content_bytes": dim * size_bytes * (1 if latent else 2),
    }
    if latent:
        return spec.LatentAttention(**common)
    match draw(st.sampled_from(["full", "full", "sliding", "chunked", "cross"])):
        case "sliding":
            return spec.SlidingWindow(**common, window_tokens=draw(st.sampled_from([128, 1024])))
        case "chunked":
            return spec.ChunkedLocal(**common, chunk_tokens=8192)
        case "cross":
            return spec.CrossAttention(**common)
        case _:
            return spec.FullAttention(**common)


@st.composite
def models(draw: st.DrawFn) -> dict[str, spec.Spec]:
    layers: list[spec.Spec] = []
    for kind in draw(st.lists(kinds(), min_size=1, max_size=3)):
        layers += [kind] * draw(st.integers(1, 12))
    order = draw(st.permutations(range(len(layers))))
    return {f"layer.{number}": layers[at] for number, at in enumerate(order)}


demands = st.builds(
    spec.Demand,
    max_model_len=st.integers(1, 300_000),
    in_flight_tokens=st.sampled_from([2048, 8192, 16384]),
    encoder_tokens=st.just(1500),
    state_mode=st.sampled_from(["none", "align"]),
)

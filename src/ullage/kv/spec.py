"""What one layer keeps of a request on one rank, as the engine counts it.  Pure.

Every class answers to a KVCacheSpec of vLLM (v1/kv_cache_interface.py, 0.32): the same arithmetic,
and two layers are equal where vLLM's are.  A *page* is what one block takes in one layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from ullage.units import ceil_div

StateMode = Literal["none", "align"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """The longest request that must be served, and what else may be held for it.

    `in_flight_tokens`: scheduled and not settled yet, a batch of --max-num-batched-tokens for each
    that runs at once: two with asynchronous scheduling.  `state_mode`: --mamba-cache-mode, "align"
    where prefixes of states are cached.
    """

    max_model_len: int
    in_flight_tokens: int
    encoder_tokens: int = 0
    state_mode: StateMode = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Keys and values of `kv_heads` heads.

    `content_bytes`: of one head and one token, keys and values together, with scales where the
    cache is quantized.  `padded_page_bytes` None: a page ends with its last token.
    """

    block_tokens: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    dtype: str
    content_bytes: int
    padded_page_bytes: int | None = None

    @property
    def token_bytes(self) -> int:
        return self.kv_heads * self.content_bytes

    @property
    def page_bytes(self) -> int:
        return self.padded_page_bytes or self.block_tokens * self.token_bytes

    def request_blocks(self, demand: Demand) -> int:
        """Blocks that the longest request holds at most."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class FullAttention(Attention):
    """Keeps every token.  `window_tokens`, `chunk_tokens`: it looks back no further, and the engine
    was told to keep everything all the same."""

    window_tokens: int | None = None
    chunk_tokens: int | None = None

    def request_blocks(self, demand: Demand) -> int:
        return ceil_div(demand.max_model_len, self.block_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention(FullAttention):
    """MLA: one latent vector a token, the same on every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlidingWindow(Attention):
    """Keeps the last `window_tokens`, and of each draft module after the first one token more."""

    window_tokens: int
    retained_tokens: int = 0

    def request_blocks(self, demand: Demand) -> int:
        behind = self.window_tokens - 1 + self.retained_tokens
        tokens = min(behind + demand.in_flight_tokens, demand.max_model_len)
        return ceil_div(tokens, self.block_tokens) + 1  # the window may begin inside a block


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkedLocal(Attention):
    """Keeps the chunk of `chunk_tokens` that a token lies in."""

    chunk_tokens: int

    def request_blocks(self, demand: Demand) -> int:
        tokens = min(self.chunk_tokens + demand.in_flight_tokens, demand.max_model_len)
        return ceil_div(tokens, self.block_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossAttention(Attention):
    """Keeps what the encoder said."""

    def request_blocks(self, demand: Demand) -> int:
        return ceil_div(demand.encoder_tokens, self.block_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderOnly(Attention):
    """Keeps nothing."""

    def request_blocks(self, demand: Demand) -> int:
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Mamba, linear attention: a state of one size, however long the request is.

    `shapes` and `element_bytes`: of its parts (convolution, recurrence).  `speculative_blocks`: one
    for each draft token, `checkpoint_blocks`: for prefixes that are cached within a prefill.
    """

    block_tokens: int
    shapes: tuple[tuple[int, ...], ...]
    element_bytes: tuple[int, ...]
    padded_page_bytes: int | None = None
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0

    @property
    def state_bytes(self) -> int:
        return sum(
            prod(shape) * size for shape, size in zip(self.shapes, self.element_bytes, strict=True)
        )

    @property
    def page_bytes(self) -> int:
        return self.padded_page_bytes or self.state_bytes

    def request_blocks(self, demand: Demand) -> int:
        if demand.state_mode == "align":
            return 2 + self.speculative_blocks + self.checkpoint_blocks
        return 1 + self.speculative_blocks


Spec = (
    FullAttention
    | LatentAttention
    | SlidingWindow
    | ChunkedLocal
    | CrossAttention
    | EncoderOnly
    | State
)

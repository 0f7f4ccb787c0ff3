"""Layers into groups that share blocks, as vLLM's planner makes them.  Pure.

All layers of a group have one block table, and groups lie over each other, byte for byte: one block
id costs as much as the widest group takes for it, and a request needs the blocks of every group.
The rules are those of `get_kv_cache_groups` (v1/core/kv_cache_utils.py, 0.32).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ullage.errors import Unsupported
from ullage.kv.spec import (
    ChunkedLocal,
    Demand,
    FullAttention,
    LatentAttention,
    SlidingWindow,
    Spec,
    State,
)
from ullage.units import ceil_div

# With this many times the layers of the rarest kind, or fewer, all groups are as long as the
# longest; else as short as the shortest.
_CLOSE = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Layers by name, each with what it keeps."""

    layers: tuple[str, ...]
    specs: tuple[Spec, ...]

    @property
    def block_bytes(self) -> int:
        """What one block takes in all layers of this group."""
        return sum(spec.page_bytes for spec in self.specs)

    def request_blocks(self, demand: Demand) -> int:
        return max(spec.request_blocks(demand) for spec in self.specs)


def grouped(layers: Mapping[str, Spec]) -> tuple[Group, ...]:
    """Groups for a cache whose layers are outermost, with blocks of one size for all of them.

    No layers: no groups.  Raises Unsupported where pages of several sizes cannot be made one.
    """
    if not layers:
        return ()
    specs = list(layers.values())
    if _merge(specs) or _of_one_type(specs):
        return (Group(layers=tuple(layers), specs=tuple(specs)),)
    if any(_stands_alone(spec, _largest_bytes(layers)) for spec in specs):
        return _kept_in_full(layers)
    unified = _one_page_size(layers)
    buckets = _buckets(unified)
    length = _group_length([len(bucket) for bucket in buckets])
    return tuple(
        Group(layers=tuple(part), specs=tuple(unified[name] for name in part))
        for bucket in buckets
        for part in _dealt(bucket, ceil_div(len(bucket), length))
    )


def _dealt(names: Sequence[str], groups: int) -> list[Sequence[str]]:
    """In turn, so that every stage of a pipeline has as many layers of each group."""
    return [names[number::groups] for number in range(groups)]


def _group_length(counts: Sequence[int]) -> int:
    shortest, longest = min(counts), max(counts)
    return longest if longest < shortest * _CLOSE else shortest


def _buckets(layers: Mapping[str, Spec]) -> list[list[str]]:
    """Layers that can be in one group, by kind, in the order in which kinds first appear."""
    alike: defaultdict[Spec, list[str]] = defaultdict(list)
    for name, spec in layers.items():
        alike[spec].append(name)
    buckets: list[tuple[list[Spec], list[str]]] = []
    for spec, names in alike.items():
        for specs, bucket in buckets:
            if _merge([*specs, spec]):
                specs.append(spec)
                bucket.extend(names)
                break
        else:
            buckets.append(([spec], list(names)))
    return [bucket for _, bucket in buckets]


def _merge(specs: Sequence[Spec]) -> bool:
    """Can they be one?  Full attention may differ in how far it looks back, for one distance."""
    full = [spec for spec in specs if type(spec) is FullAttention]
    if len(full) < len(specs):
        return all(spec == specs[0] for spec in specs)
    windows = {spec.window_tokens for spec in full} - {None}
    chunks = {spec.chunk_tokens for spec in full} - {None}
    plain = {replace(spec, window_tokens=None, chunk_tokens=None) for spec in full}
    return len(plain) == 1 and len(windows) + len(chunks) <= 1


def _of_one_type(specs: Sequence[Spec]) -> bool:
    """Do all of them need equally many blocks, whatever their sizes?"""
    first = specs[0]
    if len({spec.block_tokens for spec in specs}) > 1:
        return False
    if isinstance(first, FullAttention):
        return all(isinstance(spec, FullAttention) for spec in specs)
    return all(type(spec) is type(first) and _held(spec) == _held(first) for spec in specs)


def _held(spec: Spec) -> tuple[int, ...]:
    """What decides how many blocks a layer needs."""
    if isinstance(spec, SlidingWindow):
        return (spec.window_tokens,)
    if isinstance(spec, ChunkedLocal):
        return (spec.chunk_tokens,)
    if isinstance(spec, State):
        return (spec.speculative_blocks, spec.checkpoint_blocks, spec.page_bytes)
    return ()


def _largest_bytes(layers: Mapping[str, Spec]) -> int:
    return max(spec.page_bytes for spec in layers.values())


def _stands_alone(spec: Spec, page_bytes: int) -> bool:
    """Latents are never padded."""
    return isinstance(spec, LatentAttention) and page_bytes % spec.page_bytes != 0


def _one_page_size(layers: Mapping[str, Spec]) -> dict[str, Spec]:
    """Smaller pages get more tokens; states, and what does not divide the largest, are padded."""
    page_bytes = _largest_bytes(layers)
    return {name: _of_page(spec, page_bytes) for name, spec in layers.items()}


def _of_page(spec: Spec, page_bytes: int) -> Spec:
    if spec.page_bytes == page_bytes:
        return spec
    if isinstance(spec, State) or page_bytes % spec.page_bytes:
        return replace(spec, padded_page_bytes=page_bytes)
    return replace(spec, block_tokens=spec.block_tokens * (page_bytes // spec.page_bytes))


def _kept_in_full(layers: Mapping[str, Spec]) -> tuple[Group, ...]:
    """One group, where sliding windows that keep everything make all layers of one type."""
    lengths = {spec.block_tokens for spec in layers.values() if isinstance(spec, FullAttention)}
    length = lengths.pop() if len(lengths) == 1 else None
    whole = [
        _whole(spec, length or spec.block_tokens) if isinstance(spec, SlidingWindow) else spec
        for spec in layers.values()
    ]
    if not _of_one_type(whole):
        sizes = sorted({spec.page_bytes for spec in layers.values()})
        raise Unsupported(
            f"Layers of this model keep {', '.join(map(str, sizes))} bytes in a block, and vLLM "
            "cannot make one size of them: it does not pad latents. Leave the draft model out."
        )
    return (Group(layers=tuple(layers), specs=tuple(whole)),)


def _whole(spec: SlidingWindow, block_tokens: int) -> FullAttention:
    padded_bytes = spec.padded_page_bytes
    return FullAttention(
        block_tokens=block_tokens,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        value_head_dim=spec.value_head_dim,
        dtype=spec.dtype,
        content_bytes=spec.content_bytes,
        padded_page_bytes=padded_bytes and max(padded_bytes, block_tokens * spec.token_bytes),
        window_tokens=spec.window_tokens,
    )

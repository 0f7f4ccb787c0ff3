"""From groups and bytes to blocks, tokens and requests, as vLLM's planner counts them.  Pure.

All ranks have as many blocks as the one with the fewest.  One block, the null block, is never
given out: whether the longest request fits is asked without it, how many blocks there are with it
(`get_kv_cache_configs`, v1/core/kv_cache_utils.py, 0.32).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ullage.kv.groups import Group, grouped
from ullage.kv.spec import Demand, Spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """Layers of one rank's stage of the pipeline, and what is there for their cache."""

    layers: tuple[str, ...]
    available_bytes: int


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """`block_bytes`: of one block on each rank, 0 for a rank without a cache.

    `blocks` counts the null block.  No groups: a model that keeps nothing, with one block.
    """

    groups: tuple[Group, ...]
    ranks: tuple[Rank, ...]
    block_bytes: tuple[int, ...]
    blocks: int
    demand: Demand

    @cached_property
    def request_blocks(self) -> int:
        """Of the longest request, all groups together."""
        return self.request_blocks_at(self.demand.max_model_len)

    @property
    def concurrency(self) -> float | None:
        """Requests of the longest length at once, as the engine prints it, with the null block.
        None: they keep nothing."""
        return self.blocks / self.request_blocks if self.request_blocks else None

    @property
    def tokens(self) -> int | None:
        """As the engine prints it.  Of hybrid models it is no number of tokens that fit at once."""
        if self.concurrency is None:
            return None
        return int(self.concurrency * self.demand.max_model_len)

    @property
    def fits(self) -> bool:
        """Can the longest request be served?"""
        return self._fits_at(self.demand.max_model_len)

    def needed_bytes(self, rank: int) -> int:
        """What the longest request takes on `rank`."""
        return self.block_bytes[rank] * self.request_blocks

    def request_blocks_at(self, length: int) -> int:
        demand = replace(self.demand, max_model_len=length)
        return sum(group.request_blocks(demand) for group in self.groups)

    def longest(self) -> int:
        """The longest request, up to the demand's, that could be served; 0: not even one token."""
        low, high = 0, self.demand.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits_at(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _fits_at(self, length: int) -> bool:
        blocks = self.request_blocks_at(length)
        return all(
            size * (blocks + 1) <= rank.available_bytes
            for size, rank in zip(self.block_bytes, self.ranks, strict=True)
            if size
        )


def capacity(
    layers: Mapping[str, Spec], ranks: Sequence[Rank], demand: Demand, *, blocks: int | None = None
) -> Capacity:
    """`layers`: what each layer of any rank keeps.  `blocks`: so many of them, whatever memory is
    there (--num-gpu-blocks-override).

    Raises Unsupported as `grouped`.
    """
    # The order in which layers are met decides which ones share a group: stage after stage.
    groups = grouped({name: layers[name] for rank in ranks for name in rank.layers})
    sizes = tuple(_block_bytes(groups, set(rank.layers)) for rank in ranks)
    if blocks is not None:
        ranks = [
            replace(rank, available_bytes=blocks * size) if size else rank
            for rank, size in zip(ranks, sizes, strict=True)
        ]
    with_cache = [(rank, size) for rank, size in zip(ranks, sizes, strict=True) if size]
    return Capacity(
        groups=groups,
        ranks=tuple(ranks),
        block_bytes=sizes,
        blocks=min((max(0, rank.available_bytes) // size for rank, size in with_cache), default=1),
        demand=demand,
    )


def _block_bytes(groups: Sequence[Group], here: set[str]) -> int:
    """What a block takes in the widest group, of the layers that are here."""
    return max(
        (
            sum(
                spec.page_bytes
                for name, spec in zip(group.layers, group.specs, strict=True)
                if name in here
            )
            for group in groups
        ),
        default=0,
    )

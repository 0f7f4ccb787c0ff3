"""From a snapshot after the warm-up to the KV cache's size, with a ledger that shows how.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from ullage.accounting.exact import limiting
from ullage.accounting.leases import Promise, promised_bytes
from ullage.accounting.ledger import Ledger, Line
from ullage.accounting.snapshot import AVAILABLE_LINES, COUNTED, Snapshot
from ullage.budget import Bound, Budget, Engine, budget
from ullage.drivers.malloc import Heap
from ullage.errors import Unreadable
from ullage.kv.size import Layout, blocks_within
from ullage.units import ceil_div, gib, gib_at_least

KV_CACHE = "KV cache"
LEFT_OVER = "left over, less than is needed for one more block"
LEFT_OVER_BY_UTILIZATION = "left over by --gpu-memory-utilization"
LEFT_OVER_BY_SHARE = "left over by ULLAGE_SHARE, with room for what starts differ by"
_OPTION: Final[Mapping[Bound, str]] = {
    "available": "the memory limit",
    "utilization": "--gpu-memory-utilization",
    "share": "ULLAGE_SHARE",
}
_LEFT_OVER: Final[Mapping[Bound, str]] = {
    "available": LEFT_OVER,
    "utilization": LEFT_OVER_BY_UTILIZATION,
    "share": LEFT_OVER_BY_SHARE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The least memory of all sources.  It may change: a virtual machine gives memory back, or a
    group's limit is set anew.  Sizes that the user gave in bytes do not follow it."""

    at_start_bytes: int
    now_bytes: int

    @property
    def size_bytes(self) -> int:
        """What fractions are of."""
        return min(self.at_start_bytes, self.now_bytes)

    def change(self) -> str | None:
        """In words; None where it is what it was."""
        if self.now_bytes == self.at_start_bytes:
            return None
        return (
            f"total at start {gib(self.at_start_bytes)}, now {gib(self.now_bytes)}: fractions are "
            f"of {gib(self.size_bytes)}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One rank's part of the engine: its process, the memory behind its KV cache now (which the
    snapshot counts there), the peak of its largest step, and its C allocator's state.

    `heap_spreads`: its C heap is as it is, and keeps what steps free in pieces.
    `kernels_to_come_bytes`: what kernels for steps of other sizes will take.
    """

    pid: int
    layout: Layout
    committed_bytes: int
    transient_bytes: int
    heap: Heap | None = None
    heap_spreads: bool = True
    kernels_to_come_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """`blocks` blocks in each rank take `kv_bytes` of memory in all; `ledger` is the state once
    they are committed."""

    blocks: int
    kv_bytes: int
    limit: Limit
    budget: Budget
    ledger: Ledger

    @property
    def limit_bytes(self) -> int:
        return self.limit.size_bytes


def decide(
    *,
    snapshot: Snapshot,
    parts: Sequence[Part],
    later_bytes: int,
    margin_bytes: int | None,
    utilization: float | None,
    limit_at_start_bytes: int | None = None,
    promise: Promise | None = None,
) -> Decision:
    """`parts`: all ranks, which run their largest steps at once and have equally many blocks.
    `limit_at_start_bytes` None: this snapshot is the first."""
    limit = _limit(snapshot, limit_at_start_bytes)
    committed_bytes = sum(part.committed_bytes for part in parts)
    bounds = budget(
        total_bytes=limit.size_bytes,
        available_bytes=snapshot.available_bytes,
        engine=Engine(
            used_bytes=_own_bytes(snapshot) - committed_bytes,
            kv_bytes=committed_bytes,
            transient_bytes=sum(part.transient_bytes for part in parts),
            later_bytes=later_bytes,
        ),
        margin_bytes=margin_bytes,
        utilization=utilization,
        promise=promise,
    )
    blocks = blocks_within([part.layout for part in parts], bounds.kv_bytes)
    return Decision(
        blocks=blocks,
        kv_bytes=sum(part.layout.physical_bytes_for(blocks) for part in parts),
        limit=limit,
        budget=bounds,
        ledger=_ledger(snapshot, bounds, parts, blocks),
    )


def why_nothing_fits(
    decision: Decision, block_bytes: int, *, block_tokens: int, request_blocks: int
) -> str:
    """What stands in the way of the longest request, and how much more would do; and how much for
    one of a single block.

    `block_bytes`: of one block in all ranks together.  `request_blocks`: what the longest request
    takes, without the null block.
    """
    kept_bytes = sum(line.size_bytes or 0 for line in decision.budget.deductions)
    least_bytes = (request_blocks + 1) * block_bytes
    missing_bytes = least_bytes - decision.budget.unclamped_bytes
    shorter_bytes = (request_blocks - 1) * block_bytes
    shorter = (
        f", or by {_more(decision, missing_bytes - shorter_bytes)} with --max-model-len "
        f"{block_tokens}"
        if request_blocks > 1
        else ""
    )
    return (
        f"No KV cache fits into {gib(decision.ledger.total_bytes)}: with {gib(kept_bytes)} kept "
        f"free for peaks, {gib(missing_bytes)} are missing for the {gib(least_bytes)} of one "
        f"request. Raise {_OPTION[decision.budget.bound]} by {_more(decision, missing_bytes)} or "
        f"more{shorter}."
    )


def _more(decision: Decision, missing_bytes: int) -> str:
    """Rounded up, so that it is enough."""
    if decision.budget.bound == "available":
        return gib_at_least(missing_bytes)
    if decision.budget.bound == "utilization":
        return f"{ceil_div(100 * missing_bytes, decision.limit_bytes) / 100:.2f}"
    divided_bytes = max(1, promised_bytes(decision.limit_bytes, Fraction(1)))
    return f"{ceil_div(100 * missing_bytes, divided_bytes)}%"


def _limit(snapshot: Snapshot, at_start_bytes: int | None) -> Limit:
    now_bytes = limiting(snapshot.readings).total_bytes or 0
    return Limit(
        at_start_bytes=now_bytes if at_start_bytes is None else at_start_bytes, now_bytes=now_bytes
    )


def _own_bytes(snapshot: Snapshot) -> int:
    """Anonymous and shared memory of the engine's processes; where one cannot be read, that of the
    whole group, which is not less."""
    sizes = [(process.anon_bytes, process.shmem_bytes) for process in snapshot.processes]
    known = [anon + shmem for anon, shmem in sizes if anon is not None and shmem is not None]
    if len(known) == len(sizes):
        return sum(known)
    binding = next(each for each in snapshot.readings if each.source == snapshot.binding_source)
    if binding.parts.anon_bytes is None or binding.parts.shmem_bytes is None:
        raise Unreadable(
            "What the engine's processes take cannot be told: neither /proc nor "
            f"{binding.source} says. Leave --gpu-memory-utilization out, or make /proc readable."
        )
    return binding.parts.anon_bytes + binding.parts.shmem_bytes


def _ledger(snapshot: Snapshot, bounds: Budget, parts: Sequence[Part], blocks: int) -> Ledger:
    """The snapshot's lines, with what was available divided up among KV cache and deductions."""
    caches = [
        Line(
            name=KV_CACHE if len(parts) == 1 else f"{KV_CACHE} of rank {rank}",
            size_bytes=part.layout.physical_bytes_for(blocks),
            provenance="exact",
            source="layout",
        )
        for rank, part in enumerate(parts)
    ]
    lines = [*_kept_lines(snapshot, parts), *bounds.deductions, *caches]
    taken_bytes = sum(line.size_bytes or 0 for line in (*bounds.deductions, *caches))
    committed_bytes = sum(part.committed_bytes for part in parts)
    left_bytes = snapshot.available_bytes + committed_bytes - taken_bytes
    name = _LEFT_OVER[bounds.bound]
    if left_bytes >= 0:
        lines.append(Line(name=name, size_bytes=left_bytes, provenance="derived", source="budget"))
    return Ledger(total_bytes=snapshot.total_bytes, lines=tuple(lines))


def _kept_lines(snapshot: Snapshot, parts: Sequence[Part]) -> Iterator[Line]:
    """What is not available, without the KV cache's memory, which has lines of its own."""
    for line in snapshot.ledger.lines:
        part = next((each for each in parts if line.name.endswith(f"({each.pid})")), None)
        if part is not None:
            anon = next(each.anon_bytes for each in snapshot.processes if each.pid == part.pid)
            most_cached_bytes = max(0, (anon or 0) - part.committed_bytes)
            yield from _worker_lines(
                _less(line, part.committed_bytes), part.heap, most_cached_bytes
            )
        elif line.name in COUNTED:
            yield _less(line, sum(each.committed_bytes for each in parts))
        elif line.name not in AVAILABLE_LINES:
            yield line


def _worker_lines(line: Line, heap: Heap | None, most_cached_bytes: int) -> Iterator[Line]:
    """What is in use, and what its C allocator keeps for the next allocation."""
    cached_bytes = 0 if heap is None else min(heap.cached_bytes, most_cached_bytes)
    yield _less(line, cached_bytes)
    if heap is not None and cached_bytes:
        yield Line(
            name=f"cached by the C allocator of {line.name}, reusable",
            size_bytes=cached_bytes,
            provenance="derived",
            source=heap.allocator,
        )


def _less(line: Line, size_bytes: int) -> Line:
    if line.size_bytes is None:
        return line
    return replace(line, size_bytes=max(0, line.size_bytes - size_bytes))

"""From a snapshot after the warm-up to the KV cache's size, with a ledger that shows how.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.accounting.ledger import Ledger, Line
from ullage.accounting.snapshot import Snapshot
from ullage.budget import Budget, Engine, budget, default_margin_bytes
from ullage.kv.size import Layout

KV_CACHE = "KV cache"
LEFT_OVER = "left over, less than is needed for one more block"
LEFT_OVER_BY_UTILIZATION = "left over by --gpu-memory-utilization"
AVAILABLE_LINES = ("unused", "file pages, reclaimable")


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """`blocks` blocks take `kv_bytes` of memory; `ledger` is the state once they are committed."""

    blocks: int
    kv_bytes: int
    budget: Budget
    ledger: Ledger


def decide(
    *,
    snapshot: Snapshot,
    worker_pid: int,
    layout: Layout,
    committed_bytes: int,
    transient_bytes: int,
    later_bytes: int,
    margin_bytes: int | None,
    utilization: float | None,
) -> Decision:
    """`committed_bytes`: memory behind the KV cache now; the snapshot counts it in the worker."""
    bounds = budget(
        total_bytes=snapshot.total_bytes,
        available_bytes=snapshot.available_bytes,
        engine=Engine(
            used_bytes=_own_bytes(snapshot) - committed_bytes,
            kv_bytes=committed_bytes,
            transient_bytes=transient_bytes,
            later_bytes=later_bytes,
        ),
        margin_bytes=(
            default_margin_bytes(snapshot.total_bytes) if margin_bytes is None else margin_bytes
        ),
        utilization=utilization,
    )
    blocks = layout.blocks_within(bounds.kv_bytes)
    kv_bytes = layout.physical_bytes_for(blocks)
    return Decision(
        blocks=blocks,
        kv_bytes=kv_bytes,
        budget=bounds,
        ledger=_ledger(snapshot, bounds, worker_pid, committed_bytes, kv_bytes),
    )


def _own_bytes(snapshot: Snapshot) -> int:
    return sum((p.anon_bytes or 0) + (p.shmem_bytes or 0) for p in snapshot.processes)


def _ledger(
    snapshot: Snapshot, bounds: Budget, worker_pid: int, committed_bytes: int, kv_bytes: int
) -> Ledger:
    """The snapshot's lines, with what was available divided up among KV cache and deductions."""
    kept = [
        _without_cache(line, worker_pid, committed_bytes)
        for line in snapshot.ledger.lines
        if line.name not in AVAILABLE_LINES
    ]
    deducted = sum(line.size_bytes or 0 for line in bounds.deductions)
    left_bytes = snapshot.available_bytes + committed_bytes - kv_bytes - deducted
    name = LEFT_OVER if bounds.bound == "available" else LEFT_OVER_BY_UTILIZATION
    lines = [
        *kept,
        *bounds.deductions,
        Line(name=KV_CACHE, size_bytes=kv_bytes, provenance="exact", source="layout"),
    ]
    if left_bytes >= 0:
        lines.append(Line(name=name, size_bytes=left_bytes, provenance="derived", source="budget"))
    return Ledger(total_bytes=snapshot.total_bytes, lines=tuple(lines))


def _without_cache(line: Line, worker_pid: int, committed_bytes: int) -> Line:
    if line.size_bytes is None or not line.name.endswith(f"({worker_pid})"):
        return line
    return Line(
        name=line.name,
        size_bytes=max(0, line.size_bytes - committed_bytes),
        provenance=line.provenance,
        source=line.source,
    )

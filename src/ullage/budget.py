"""What the KV cache may take: what is available, each deduction by name.

Pure.  Three bounds, and the smallest one binds:
- what is available, less what must stay free: the transient peak of the largest step, what the
  engine's other processes still take before the first request, and a margin;
- where the user gave a fraction, that fraction of the total, less everything else that the engine
  takes exactly.  No margin is taken off this one: it already leaves memory free;
- where the engine has a share of the limit, its promise, less everything that it needs: the margin
  and its file pages as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final, Literal

from ullage.accounting.leases import Promise
from ullage.accounting.ledger import Line
from ullage.units import MIB

Bound = Literal["available", "utilization", "share"]

MARGIN_FLOOR_BYTES: Final = 64 * MIB
MARGIN_FRACTION: Final = Fraction(1, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """What was measured of an engine after its warm-up.

    `used_bytes` is everything its processes keep without the KV cache; `kv_bytes` the cache's
    memory at that moment, part of what the snapshot counts as used.  `later_bytes` is what its
    processes are known to take once the KV cache has its size.
    """

    used_bytes: int
    kv_bytes: int
    transient_bytes: int
    later_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """`kv_bytes` may be committed in all; `deductions` are what was kept free for what.

    `unclamped_bytes` is below 0 by what is missing where not even the deductions fit.
    """

    unclamped_bytes: int
    bound: Bound
    deductions: tuple[Line, ...]

    @property
    def kv_bytes(self) -> int:
        return max(0, self.unclamped_bytes)


def default_margin_bytes(total_bytes: int) -> int:
    """Room for what no warm-up shows.

    Measured on a 0.9 GiB model under adversarial load: a worker's heap grows by 20 MiB more than is
    kept for it, and 30 MiB of code come into use that the usual work does not touch.
    """
    return max(MARGIN_FLOOR_BYTES, ceil(total_bytes * MARGIN_FRACTION))


def budget(
    *,
    total_bytes: int,
    available_bytes: int,
    engine: Engine,
    margin_bytes: int | None,
    utilization: float | None,
    promise: Promise | None = None,
) -> Budget:
    """The KV cache's bytes.  `available_bytes` is what could be taken beside what is taken now.

    `margin_bytes` None: the default one.  `utilization` None: the user named no fraction.
    `promise` None: the engine has no share.
    """
    if margin_bytes is None:
        margin_bytes = default_margin_bytes(total_bytes)
    deductions = _deductions(engine, margin_bytes)
    kept_bytes = engine.transient_bytes + engine.later_bytes
    needed_bytes = engine.used_bytes + kept_bytes
    bounds: dict[Bound, int] = {
        "available": available_bytes + engine.kv_bytes - kept_bytes - margin_bytes
    }
    if utilization is not None:
        bounds["utilization"] = ceil(total_bytes * Fraction(utilization)) - needed_bytes
    if promise is not None:
        bounds["share"] = promise.kv_bytes(needed_bytes + margin_bytes)
    bound = min(bounds, key=lambda name: bounds[name])
    return Budget(unclamped_bytes=bounds[bound], bound=bound, deductions=deductions)


def _deductions(engine: Engine, margin_bytes: int) -> tuple[Line, ...]:
    return (
        Line(
            name="transient peak of the largest step",
            size_bytes=engine.transient_bytes,
            provenance="measured",
            source="VmHWM over the warm-up",
        ),
        Line(
            name="still to come in the engine's processes",
            size_bytes=engine.later_bytes,
            provenance="estimated",
            source="earlier starts of this engine version",
        ),
        Line(name="margin", size_bytes=margin_bytes, provenance="estimated", source="budget"),
    )

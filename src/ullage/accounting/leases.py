"""What several engines on one host have promised one another, and what follows for the next.  Pure.

A limit L is divided after C, which is kept for what belongs to no engine (kernel memory, files that
others use).  An engine with the share s is promised P = s x (L - C) for all that it needs: memory
of its own, the KV cache, peaks, its margin, the file pages that it uses.  What it still needs is
P less what it has taken, so the next engine finds the same whichever step the others have reached:

    their memory + what they still need = their promises <= L - C - P

A limit of 8.00 GiB keeps 0.125 for all; two halves are promised 3.94 each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from ullage.accounting.snapshot import Snapshot
from ullage.errors import DoesNotFit, OverAvailable
from ullage.units import MIB, ceil_div, gib

# Measured: page tables, slab and stacks of two engines of 0.9 GiB take 33 MiB of their group.
_COMMON_FLOOR_BYTES: Final = 128 * MIB
_COMMON_DIVISOR: Final = 64

# Measured: equal starts of an engine of 0.9 GiB found room for KV caches that differ by 120 MiB,
# alone and beside others: the peak of the heap does (benchmarks/results/main_job-4GiB-warm.json).
STEADY_BYTES: Final = 192 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One process of one boot.  A pid means something in its own pid namespace only."""

    boot_id: str
    pid_namespace: str
    pid: int
    start_time_ticks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """What the engine of `worker` has taken, and may take in all.

    `limit` is the tightest of `limits`, all by identity: `host`, or a cgroup's inode.  `share` is
    "1/3" of it; None: whatever was there.  A rank need not be below the front end (in Ray).
    """

    schema: Literal["ullage.lease/1"] = "ullage.lease/1"
    worker: Process
    frontend_pid: int
    limit: str
    limits: tuple[str, ...]
    limit_bytes: int
    share: str | None
    promised_bytes: int
    taken_bytes: int
    rank_pids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.limit_bytes, self.promised_bytes, self.taken_bytes) < 0:
            raise ValueError("A size in a lease is negative.")
        if self.share is not None:
            parse_share(self.share)

    @property
    def needed_bytes(self) -> int:
        """What it may still take: promised, and not taken."""
        return max(0, self.promised_bytes - self.taken_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """What an engine with a share may use in all, `file_bytes` of it for file pages in use.

    `earlier_kv_bytes`: what an equal start was given in an equal share; None: there was none.
    """

    size_bytes: int
    file_bytes: int
    earlier_kv_bytes: int | None

    def kv_bytes(self, other_bytes: int) -> int:
        """The KV cache's part, where all else needs `other_bytes`; below 0 where that is too much.

        Starts differ by a little, so the first one leaves a room that the next ones may use, and
        they are given what it was given as long as that fits and leaves less than two rooms.
        """
        fits_bytes = self.size_bytes - self.file_bytes - other_bytes
        earlier_bytes = self.earlier_kv_bytes
        if earlier_bytes and earlier_bytes <= fits_bytes <= earlier_bytes + 2 * STEADY_BYTES:
            return earlier_bytes
        return fits_bytes - STEADY_BYTES


def parse_share(text: str) -> Fraction:
    """The share in "1/3", "0.33" or "33%".  Raises ValueError for what is none."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = Fraction(number) / (100 if percent else 1)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1 or (percent and "/" in number):  # "1/3%" may mean a third, or 1/300
        raise ValueError(f"'{text}' is not a share. Write it like 1/3, 0.33 or 33%.")
    return share


def promised_bytes(limit_bytes: int, share: Fraction | None) -> int:
    """None: all of the limit."""
    if share is None:
        return limit_bytes
    common_bytes = max(_COMMON_FLOOR_BYTES, limit_bytes // _COMMON_DIVISOR)
    return int(share * max(0, limit_bytes - common_bytes))


def promised_of_more(share: Fraction) -> Fraction:
    """The least that a limit raised by 1 promises more."""
    return share * (1 - Fraction(1, _COMMON_DIVISOR))


def refuse_if_promised(share: Fraction | None, limit: str, others: Sequence[Lease]) -> None:
    """Raises DoesNotFit where the others of `limit` leave no room for `share`.  None: any room."""
    present = [lease for lease in others if lease.limit == limit]
    for lease in present:
        if lease.share is None:
            raise DoesNotFit(
                f"The engine of process {lease.worker.pid} was started without a share, and all "
                f"of {gib(lease.limit_bytes)} is its own. Start it anew with ULLAGE_SHARE=1/2, "
                "and this one too."
            )
    left = left_share(limit, others)
    if left > 0 and (share is None or share <= left):
        return
    held = ", ".join(f"{lease.share} (process {lease.worker.pid})" for lease in present)
    way_out = f"Set ULLAGE_SHARE={left} or less, or end" if left > 0 else "End"
    asked = "this one has no share" if share is None else f"this one asks for {share}"
    raise DoesNotFit(
        f"Engines of ours hold {held} of the memory limit, and {asked}. {way_out} one of them."
    )


def left_share(limit: str, others: Sequence[Lease]) -> Fraction:
    """Of `limit`, what no other one holds: nothing beside an engine without a share."""
    present = [lease for lease in others if lease.limit == limit]
    held = sum((Fraction(lease.share or 1) for lease in present), Fraction(0))
    return max(Fraction(0), 1 - held)


def asleep(lease: Lease, taken_bytes: int) -> Lease:
    """It promises what it still holds, and its share is what that is of the divided limit."""
    divided_bytes = max(1, promised_bytes(lease.limit_bytes, Fraction(1)))
    share = min(Fraction(1), Fraction(max(1, ceil_div(1000 * taken_bytes, divided_bytes)), 1000))
    return replace(lease, share=str(share), promised_bytes=taken_bytes, taken_bytes=taken_bytes)


def refuse_awake(
    share: Fraction, limit: str, *, before: Sequence[Lease], now: Sequence[Lease]
) -> None:
    """Raises OverAvailable where an engine that came or woke while this one slept leaves less than
    `share`.  `before`: the others when it fell asleep; those among `now` leave it what they left.
    """
    kept = {(lease.worker, lease.share) for lease in before}
    present = [lease for lease in now if lease.limit == limit]
    if share <= left_share(limit, now) or all((x.worker, x.share) in kept for x in present):
        return
    held = ", ".join(f"{x.share or 'all'} (process {x.worker.pid})" for x in present)
    raise OverAvailable(
        f"Engines of ours hold {held} of the memory limit, and this one needs {share} to wake. It "
        "stays asleep: end one of them or put it to sleep, and wake this one again."
    )


def needed_by_source(others: Sequence[Lease], identities: Mapping[str, str]) -> dict[str, int]:
    """What the others still need of each source.  `identities`: source to identity."""
    return {
        source: sum(lease.needed_bytes for lease in others if identity in lease.limits)
        for source, identity in identities.items()
    }


def foreign_bytes(
    snapshot: Snapshot, source: str, identity: str, others: Sequence[Lease]
) -> int | None:
    """Anonymous memory and shmem in `source` that no engine of ours holds; None where unknown, as
    after the engine was moved to another cgroup."""
    parts = next((each.parts for each in snapshot.readings if each.source == source), None)
    if parts is None or parts.anon_bytes is None or parts.shmem_bytes is None:
        return None
    ours_bytes = sum(lease.taken_bytes for lease in others if identity in lease.limits)
    for process in snapshot.processes:
        if process.anon_bytes is None or process.shmem_bytes is None:
            return None
        ours_bytes += process.anon_bytes + process.shmem_bytes
    return parts.anon_bytes + parts.shmem_bytes - ours_bytes


def is_dead(lease: Lease, me: Process, start_time_ticks: int | None) -> bool | None:
    """Has the engine of `lease` ended?  None: that cannot be told from `me`'s pid namespace.

    `start_time_ticks`: of the process that has its pid now; None: there is none.
    """
    worker = lease.worker
    if worker.boot_id != me.boot_id:
        return True
    if worker.pid_namespace != me.pid_namespace:
        return None
    return worker.start_time_ticks != start_time_ticks

"""How much memory can still be taken now: the smallest of what each source leaves.

For a limited group:

    available = limit - (used - reclaimable)
    reclaimable = file pages on the LRU lists - hot - unwritten

so a group with limit 4.0, used 3.0, of which 1.5 are clean file pages and 0.2 of those mapped,
has 4.0 - (3.0 - 1.3) = 2.3 left.  For the host, the kernel's MemAvailable takes the place of
free + reclaimable, with the same deductions and a margin.  NUMA nodes have no MemAvailable: theirs
is the rule of a group, with the host's margin.

A bound on what may be mapped or promised leaves its limit less what counts against it.

shmem, swap and the huge page pool never count as available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ullage.devices.base import MemoryParts, Reading
from ullage.errors import Unreadable
from ullage.units import MIB, gib

# MemAvailable is an estimate: per-CPU counters lag, reclaim is not perfect, and everything else
# on the host allocates as well.  Below its low watermark the kernel wakes kswapd and stalls
# allocations; by default the watermarks lie 0.1 % of memory apart (vm.watermark_scale_factor).
# Ten such steps, and on small machines, where min_free_kbytes dominates, about three times its
# low watermark (82 MiB on a 24 GiB machine).
_MARGIN_DIVISOR: Final = 100
_MARGIN_FLOOR_BYTES: Final = 256 * MIB
# Where promises are bounded, the kernel keeps some of them back: 8 MiB for root's processes and
# 128 MiB for everybody's small ones, unless set otherwise (admin_reserve_kbytes,
# user_reserve_kbytes: Documentation/admin-guide/sysctl/vm.rst).
_COMMIT_RESERVE_BYTES: Final = (8 + 128) * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePages:
    """File pages on the LRU lists, in three parts that do not overlap, and those that are not
    on this source's lists but must find room here."""

    hot_bytes: int  # running code and weights in use, reclaimed only to be read again
    unwritten_bytes: int  # dirty or being written back: not free before the disk has them
    reclaimable_bytes: int
    elsewhere_bytes: int  # hot as well, charged to another group now


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingSet:
    """The mapped file pages of the own processes, as far as they are really used.

    A process keeps mapped what it touched once, such as a library's start-up code: in
    `mapped_bytes`, with mapped shmem, as the kernel's count of mapped pages has it.
    `referenced_bytes` is what it touched while it did its usual work; it must stay in memory
    wherever the kernel charged it, because once evicted it is charged to whoever reads it next.
    """

    mapped_bytes: int
    referenced_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """What one source leaves.  None: it sets no limit, or does not say enough."""

    source: str
    available_bytes: int | None
    margin_bytes: int = 0  # already taken off
    promised_bytes: int = 0  # to others, already taken off


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    total_bytes: int  # of the binding source: its limit, or MemTotal
    available_bytes: int
    binding_source: str
    candidates: tuple[Candidate, ...]


def settle(
    readings: Sequence[Reading],
    *,
    working_set: WorkingSet | None = None,
    promised: Mapping[str, int] | None = None,
) -> Settled:
    """The tightest of all sources; among equals the first.

    `working_set` None: every mapped page counts as hot.  `promised`: by source, bytes that others
    were promised and have not taken yet.

    Raises Unreadable where no source says enough, and where a limit is known but not how much of
    it is used: it may be nearly full, and exceeding it is SIGKILL, not an error.
    """
    for reading in readings:
        _refuse_unknown_use(reading)
    candidates = tuple(
        _less(_candidate(reading, working_set), (promised or {}).get(reading.source, 0))
        for reading in readings
    )
    known = [
        (candidate.available_bytes, reading.total_bytes, candidate.source)
        for candidate, reading in zip(candidates, readings, strict=True)
        if candidate.available_bytes is not None and reading.total_bytes is not None
    ]
    if not known:
        names = ", ".join(reading.source for reading in readings) or "no source"
        raise Unreadable(
            f"How much memory is available cannot be told: asked {names}. "
            "Make /proc/meminfo readable."
        )
    available, total, source = min(known, key=lambda each: each[0])
    return Settled(
        total_bytes=total, available_bytes=available, binding_source=source, candidates=candidates
    )


def limiting(readings: Sequence[Reading]) -> Reading:
    """The source with the least memory in all, whatever is used of it: what a fraction is one of.

    pre: one of them says how much memory there is, as after `settle`.
    """
    known = [each for each in readings if each.counts_memory and each.total_bytes is not None]
    return min(known, key=lambda each: each.total_bytes or 0)


def _less(candidate: Candidate, promised_bytes: int) -> Candidate:
    if candidate.available_bytes is None or not promised_bytes:
        return candidate
    return replace(
        candidate,
        available_bytes=max(0, candidate.available_bytes - promised_bytes),
        promised_bytes=promised_bytes,
    )


def _refuse_unknown_use(reading: Reading) -> None:
    if reading.scope != "group" or reading.total_bytes is None:
        return
    if reading.used_bytes is None:
        raise Unreadable(
            f"{reading.source} limits memory to {gib(reading.total_bytes)}, but does not say how "
            "much of it is used. Make the group's memory.current readable."
        )


def _candidate(reading: Reading, working_set: WorkingSet | None) -> Candidate:
    margin = _margin_bytes(reading)
    if reading.scope == "host":
        available = _host_available_bytes(reading, working_set)
    elif reading.counts_memory:
        available = _group_available_bytes(reading, working_set)
    else:
        available = _unused_bytes(reading)
    return Candidate(
        source=reading.source,
        available_bytes=None if available is None else max(0, available - margin),
        margin_bytes=margin,
    )


def _unused_bytes(reading: Reading) -> int | None:
    if reading.total_bytes is None or reading.used_bytes is None:
        return None
    return max(0, reading.total_bytes - reading.used_bytes)


def _group_available_bytes(reading: Reading, working_set: WorkingSet | None) -> int | None:
    if reading.total_bytes is None or reading.used_bytes is None:
        return None
    pages = file_pages(reading.parts, working_set)
    # Not knowing what can be reclaimed, nothing can be.
    reclaimable_bytes = 0 if pages is None else pages.reclaimable_bytes
    elsewhere_bytes = 0 if pages is None else pages.elsewhere_bytes
    kept_bytes = max(0, reading.used_bytes - reclaimable_bytes) + elsewhere_bytes
    return max(0, reading.total_bytes - kept_bytes)


def _host_available_bytes(reading: Reading, working_set: WorkingSet | None) -> int | None:
    claimed = reading.parts.available_bytes
    if claimed is None:
        return None
    pages = file_pages(reading.parts, working_set)
    if pages is not None:
        kept_bytes = pages.hot_bytes + pages.elsewhere_bytes + pages.unwritten_bytes
        return max(0, claimed - kept_bytes)
    # MemAvailable counts file pages, and how many of them are in use is not known.
    if reading.free_bytes is None:
        return None
    return min(claimed, reading.free_bytes)


def _margin_bytes(reading: Reading) -> int:
    """What is never taken of this source, whatever it says is left."""
    if reading.scope in ("host", "nodes"):
        return max(_MARGIN_FLOOR_BYTES, (reading.total_bytes or 0) // _MARGIN_DIVISOR)
    return _COMMIT_RESERVE_BYTES if reading.scope == "commit" else 0


def file_pages(parts: MemoryParts, working_set: WorkingSet | None = None) -> FilePages | None:
    """The file pages on the LRU lists, taken apart; None unless all counters are known.

    The kernel's count of mapped pages includes mapped shmem, which is not on these lists.  Taking
    all shmem off would be wrong the other way, since shmem need not be mapped.  So the count is
    only held to the size of the lists: at worst too much is called hot.
    """
    if (
        parts.inactive_file_bytes is None
        or parts.active_file_bytes is None
        or parts.mapped_file_bytes is None
        or parts.dirty_bytes is None
        or parts.writeback_bytes is None
    ):
        return None
    listed_bytes = parts.inactive_file_bytes + parts.active_file_bytes
    needed_bytes = _needed_bytes(parts.mapped_file_bytes, working_set)
    mapped_bytes = min(parts.mapped_file_bytes, listed_bytes)
    hot_bytes = min(needed_bytes, mapped_bytes)
    unwritten_bytes = min(parts.dirty_bytes + parts.writeback_bytes, listed_bytes - hot_bytes)
    return FilePages(
        hot_bytes=hot_bytes,
        unwritten_bytes=unwritten_bytes,
        reclaimable_bytes=listed_bytes - hot_bytes - unwritten_bytes,
        elsewhere_bytes=0 if working_set is None else needed_bytes - hot_bytes,
    )


def _needed_bytes(mapped_bytes: int, working_set: WorkingSet | None) -> int:
    """What others have mapped counts as hot in full: how they use it is not known.

    The source says how much is mapped, not by whom.  Where own pages are charged elsewhere, others'
    pages here are taken for own ones up to that amount.
    """
    if working_set is None:
        return mapped_bytes
    return working_set.referenced_bytes + max(0, mapped_bytes - working_set.mapped_bytes)


def unreclaimable_bytes(parts: MemoryParts) -> int | None:
    """Memory that no reclaim gives back without swap: anonymous, shmem, kernel, locked file pages.

    What an engine truly occupies, whatever the page cache does; None unless anonymous memory,
    shmem and kernel memory are known.  Reclaimable slab is left out where it is known (v2 only).
    """
    if parts.anon_bytes is None or parts.shmem_bytes is None or parts.kernel_bytes is None:
        return None
    # The counters are read one after the other, so a part can be above its sum for a moment.
    kernel_bytes = max(0, parts.kernel_bytes - (parts.slab_reclaimable_bytes or 0))
    return parts.anon_bytes + parts.shmem_bytes + kernel_bytes + (_locked_file_bytes(parts) or 0)


def _locked_file_bytes(parts: MemoryParts) -> int | None:
    """File pages on no reclaimable list.  `unevictable` alone would count locked anonymous memory
    and shmem a second time."""
    if (
        parts.unevictable_bytes is None
        or parts.file_bytes is None
        or parts.shmem_bytes is None
        or parts.inactive_file_bytes is None
        or parts.active_file_bytes is None
    ):
        return None
    listed_bytes = parts.inactive_file_bytes + parts.active_file_bytes
    return min(parts.unevictable_bytes, max(0, parts.file_bytes - parts.shmem_bytes - listed_bytes))

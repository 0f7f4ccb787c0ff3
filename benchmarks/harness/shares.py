"""What share of the memory that is left is KV cache, from counters that were read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from harness.ledger import size_bytes_of
from ullage.accounting.exact import WorkingSet, file_pages, unreclaimable_bytes
from ullage.devices.base import MemoryParts, ProcessReading
from ullage.errors import Unreadable

PEAK: Final = "transient peak of the largest step"  # the ledger's line


def share(
    *,
    limit_bytes: int,
    kv_bytes: int,
    parts: MemoryParts,
    processes: Sequence[ProcessReading],
    referenced_bytes: int | None,
) -> dict[str, Any]:
    """`left` and what it is made of, with the counters as they were read.  Pure.

    Raises Unreadable where a counter is missing.
    """
    unreclaimable = unreclaimable_bytes(parts)
    mapped = [size for each in processes for size in (each.file_bytes, each.shmem_bytes)]
    if unreclaimable is None or referenced_bytes is None or None in mapped:
        raise Unreadable(
            "The group's counters or a process's references cannot be read. Run as root."
        )
    mapped_bytes = sum(size or 0 for size in mapped)
    working_set = WorkingSet(mapped_bytes=mapped_bytes, referenced_bytes=referenced_bytes)
    pages = file_pages(parts, working_set)
    if pages is None:
        raise Unreadable("The group does not count its file pages. Use another kernel.")
    hot_bytes = pages.hot_bytes + pages.elsewhere_bytes
    left_bytes = limit_bytes - (unreclaimable - kv_bytes) - hot_bytes
    return {
        "kv_share": round(kv_bytes / left_bytes, 4),
        "left_bytes": left_bytes,
        "unreclaimable_bytes": unreclaimable,
        "non_kv_unreclaimable_bytes": unreclaimable - kv_bytes,
        "hot_bytes": hot_bytes,
        "hot_charged_elsewhere_bytes": pages.elsewhere_bytes,
        "processes_mapped_bytes": mapped_bytes,
        "processes_referenced_bytes": referenced_bytes,
        "group": dataclasses.asdict(parts),
    }


def with_peak_kept(told: dict[str, Any], kv_bytes: int, ledger: Sequence[str]) -> dict[str, Any]:
    """The second figure; None where the ledger names no peak.  Pure."""
    peak_bytes = size_bytes_of(ledger, PEAK)
    left_bytes = None if peak_bytes is None else told["left_bytes"] - peak_bytes
    return {
        **told,
        "kv_share_with_peak_kept": None if left_bytes is None else round(kv_bytes / left_bytes, 4),
        "ledger_peak_bytes": peak_bytes,
    }

"""`ullage leases` as a value and as text: who holds what.

The field names and what they mean are the format `ullage.leases/1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ullage.accounting.leases import Lease
from ullage.report.text import columns
from ullage.units import gib

NOT_MODELED: Final = (
    "engines of other users, or that see another lease folder",
    "engines without ullage, which leave no lease",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasesReport:
    """`removed` were of engines that have ended; `unclear` are of another pid namespace."""

    schema: Literal["ullage.leases/1"] = "ullage.leases/1"
    folder: str
    living: tuple[Lease, ...]
    removed: tuple[Lease, ...]
    unclear: tuple[Lease, ...]
    damaged: tuple[str, ...]
    not_modeled: tuple[str, ...] = NOT_MODELED


def leases_text(report: LeasesReport) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: LeasesReport) -> Iterator[str]:
    if report.living:
        head = ("process", "share", "of", "promised", "taken", "still needed")
        yield from columns([head, *map(_row, report.living)], sides="><>>>>")
    else:
        yield "No engine holds a lease."
    for lease in report.removed:
        yield f"removed: process {lease.worker.pid} has ended"
    for lease in report.unclear:
        yield f"not counted: process {lease.worker.pid} is of another pid namespace"
    for path in report.damaged:
        yield f"not counted: {path} is no lease"


def _row(lease: Lease) -> tuple[str, ...]:
    sizes = (lease.limit_bytes, lease.promised_bytes, lease.taken_bytes, lease.needed_bytes)
    return (str(lease.worker.pid), lease.share or "all", *map(gib, sizes))

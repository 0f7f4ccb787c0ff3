"""`ullage leases`: which engines share this host's memory, and what each still needs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:
    from ullage.accounting.leases import Lease

NOT_MODELED: Final = (
    "engines of other users, or that see another folder",
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


def leases(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the engines that share this host's memory: what each has taken and still needs.

    Leases of engines that have ended are named and removed.
    """
    from ullage.leases import LeaseFolder, default_folder
    from ullage.report.json import document

    path = default_folder(os.environ)
    folder = LeaseFolder(path)
    with folder.changing():
        found = folder.clean()
    report = LeasesReport(
        folder=str(path),
        living=found.living,
        removed=found.dead,
        unclear=found.unclear,
        damaged=found.damaged,
    )
    typer.echo(document(report) if json else leases_text(report), nl=False)


def leases_text(report: LeasesReport) -> str:
    from ullage.report.text import columns

    rows: list[tuple[str, ...]] = [("process", "share", "of", "promised", "taken", "still needed")]
    rows += [_row(lease) for lease in report.living]
    lines = list(columns(rows, sides="><>>>>")) if report.living else ["No engine holds a lease."]
    lines += [f"removed: process {lease.worker.pid} has ended" for lease in report.removed]
    lines += [
        f"not counted: process {lease.worker.pid} is of another pid namespace"
        for lease in report.unclear
    ]
    lines += [f"not counted: {path} is no lease" for path in report.damaged]
    return "\n".join(lines) + "\n"


def _row(lease: Lease) -> tuple[str, ...]:
    from ullage.units import gib

    sizes = (lease.limit_bytes, lease.promised_bytes, lease.taken_bytes, lease.needed_bytes)
    return (str(lease.worker.pid), lease.share or "all", *map(gib, sizes))

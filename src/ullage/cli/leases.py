"""`ullage leases`: which engines share this host's memory, and what each still needs."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def leases(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the engines that share this host's memory: what each has taken and still needs.

    Leases of engines that have ended are named and removed.
    """
    from ullage.leases import LeaseFolder, default_folder
    from ullage.report.json import document
    from ullage.report.leases import LeasesReport, leases_text

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

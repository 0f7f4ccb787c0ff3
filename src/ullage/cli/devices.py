"""`ullage devices`: what can still be taken, and who has the rest."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def devices(
    pid: Annotated[
        int | None,
        typer.Option(metavar="PID", help="Give this process and its children a line each.", min=1),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the memory that can still be taken, and who has the rest.

    You see what each source says, side by side, and which one binds. The ledger's lines and its
    residual add up to the total. A container's limit is one of the sources.
    """
    from ullage.accounting.snapshot import snapshot
    from ullage.devices import host
    from ullage.errors import Usage
    from ullage.report.devices import DevicesReport, device_report
    from ullage.report.json import document
    from ullage.report.text import devices_text

    tree = [] if pid is None else host.process_tree(pid)
    if pid is not None and not tree:
        raise Usage(f"There is no process {pid}. Name one that runs.")
    moment = snapshot(
        readings=host.read(), processes=host.read_processes(tree), taken_at_s=time.time()
    )
    reports = tuple(device_report(device, moment) for device in host.find())
    report = DevicesReport(taken_at_s=moment.taken_at_s, devices=reports)
    typer.echo(document(report) if json else devices_text(report), nl=False)

"""`ullage receipts`: what earlier starts of an engine told of themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from ullage.report.receipt import ReceiptsReport


def receipts(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show this one, or the latest.  [default: list all]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the receipts of earlier starts, the newest first, or show one.

    Each start writes one: versions, flags, readings, the ledger, the steps of the warm-up, and
    where the time went. The newest hundred are kept.
    """
    from ullage.errors import Usage
    from ullage.receipts import SWITCH, find, folder, load
    from ullage.report.json import document
    from ullage.report.receipt_text import receipt_text, receipts_text

    where = folder(os.environ)
    if where is None:
        raise Usage(f"{SWITCH}=0 switches receipts off. Set it to the folder to look into.")
    if name is None:
        report = read_all(where)
        typer.echo(document(report) if json else receipts_text(report), nl=False)
    else:
        receipt = load(where, find(where, name))
        typer.echo(document(receipt) if json else receipt_text(receipt), nl=False)


def read_all(where: Path) -> ReceiptsReport:
    """A receipt that another start removes meanwhile is told as unreadable."""
    from ullage.errors import Unreadable
    from ullage.receipts import load, names
    from ullage.report.receipt import ReceiptsReport, summary

    found, unreadable = [], []
    for name in reversed(names(where)):
        try:
            found.append(summary(load(where, name)))
        except Unreadable as error:
            unreadable.append(str(error))
    return ReceiptsReport(folder=str(where), receipts=tuple(found), unreadable=tuple(unreadable))

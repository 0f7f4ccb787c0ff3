"""A ledger as plain text, for logs and terminals alike."""

from __future__ import annotations

from ullage.accounting.ledger import Ledger
from ullage.units import gib


def ledger_text(ledger: Ledger) -> str:
    """One line each: size, name, provenance, source.  The residual is always shown."""
    rows = [
        ("?" if line.size_bytes is None else gib(line.size_bytes, digits=3), line.name, note)
        for line in ledger.lines
        for note in (f"{line.provenance}, {line.source}",)
    ]
    rows.append((gib(ledger.residual_bytes, digits=3), "residual", "total less all lines"))
    rows.append((gib(ledger.total_bytes, digits=3), "total", ""))
    sizes = max(len(size) for size, _, _ in rows)
    names = max(len(name) for _, name, _ in rows)
    return "\n".join(
        f"{size:>{sizes}}  {name:<{names}}  {note}".rstrip() for size, name, note in rows
    )

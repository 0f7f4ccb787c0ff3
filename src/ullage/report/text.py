"""Results as plain text for a terminal or a pipe: sizes in GiB, no colour, no line cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ullage.accounting.ledger import Ledger
from ullage.devices.base import MemoryParts
from ullage.report.devices import DeviceReport, DevicesReport, SourceReport
from ullage.report.ledger import ledger_text
from ullage.units import gib

UNKNOWN: Final = "unknown"


def columns(rows: Sequence[Sequence[str]], *, sides: str) -> Iterator[str]:
    """Lines in which each column is as wide as its widest cell.

    `sides` has "<" or ">" for each column: where its text stands.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()


def size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else gib(size_bytes)


def devices_text(report: DevicesReport) -> str:
    """The sources side by side, then the ledger, for each device."""
    blocks = [block for device in report.devices for block in _device_blocks(device)]
    return "\n\n".join(blocks) + "\n"


def _device_blocks(device: DeviceReport) -> Iterator[str]:
    yield (
        f"{device.platform} {device.index}: {device.name}\n"
        f"{gib(device.available_bytes)} can still be taken, "
        f"of {gib(device.total_bytes)} ({device.binding_source})"
    )
    yield "\n".join(_source_lines(device))
    if notes := list(_note_lines(device)):
        yield "\n".join(notes)
    yield ledger_text(Ledger(total_bytes=device.ledger.total_bytes, lines=device.ledger.lines))


def _source_lines(device: DeviceReport) -> Iterator[str]:
    """Sizes first: a group's name may be longer than a terminal is wide."""
    rows = [("total", "used", "could be taken", "", "source")]
    rows += [_source_row(source) for source in device.sources]
    yield from columns(rows, sides=">>><<")


def _source_row(source: SourceReport) -> tuple[str, str, str, str, str]:
    reading = source.reading
    no_limit = reading.total_bytes is None and reading.scope == "group"
    return (
        "no limit" if no_limit else size(reading.total_bytes),
        size(reading.used_bytes),
        "no limit" if no_limit else size(source.available_bytes),
        "binds" if source.binds else "",
        reading.source,
    )


def _note_lines(device: DeviceReport) -> Iterator[str]:
    """What is told and bounds nothing: swap, and how long processes waited for memory."""
    rows = []
    for reading in (source.reading for source in device.sources):
        if reading.parts.swap_total_bytes is not None:
            rows.append(("swap, never counted", _swap_text(reading.parts), reading.source))
        if reading.pressure is not None:
            some, full = reading.pressure.some_percent, reading.pressure.full_percent
            waited = f"some {some:.2f} %, all {full:.2f} %"
            rows.append(("waited for memory, last 10 s", waited, reading.source))
    yield from columns(rows, sides="<<<") if rows else ()


def _swap_text(parts: MemoryParts) -> str:
    if parts.swap_total_bytes == 0:
        return "none"
    return f"{size(parts.swap_free_bytes)} free of {size(parts.swap_total_bytes)}"

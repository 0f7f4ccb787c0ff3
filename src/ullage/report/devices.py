"""`ullage devices` as a value: what each source says, which one binds, and the ledger.

The field names and what they mean are the format `ullage.devices/1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ullage.accounting.exact import Candidate, Settled, settle
from ullage.accounting.ledger import Line
from ullage.accounting.snapshot import Snapshot
from ullage.devices.base import Device, Reading

NOT_MODELED: Final = (
    "accelerators: no GPU, NPU or TPU is looked for",
    "swap: it never counts as available",
    "NUMA: of several nodes that may be used, one may be full while the others are not",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceReport:
    """One source's reading, and what it leaves: None where it does not say, or sets no limit."""

    reading: Reading
    binds: bool
    available_bytes: int | None
    margin_bytes: int  # taken off `available_bytes` already


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerReport:
    """`lines` and `residual_bytes` add up to `total_bytes`; a line of unknown size adds nothing."""

    total_bytes: int
    lines: tuple[Line, ...]
    residual_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceReport:
    platform: str
    index: int
    name: str
    total_bytes: int
    available_bytes: int
    binding_source: str
    sources: tuple[SourceReport, ...]
    ledger: LedgerReport


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicesReport:
    schema: Literal["ullage.devices/1"] = "ullage.devices/1"
    taken_at_s: float  # Unix time
    devices: tuple[DeviceReport, ...]
    not_modeled: tuple[str, ...] = NOT_MODELED


def device_report(device: Device, moment: Snapshot) -> DeviceReport:
    """pre: `moment` was settled from its readings alone, without a working set."""
    settled = settle(moment.readings)
    return DeviceReport(
        platform=device.platform,
        index=device.index,
        name=device.name,
        total_bytes=moment.total_bytes,
        available_bytes=moment.available_bytes,
        binding_source=moment.binding_source,
        sources=_sources(moment.readings, settled),
        ledger=LedgerReport(
            total_bytes=moment.ledger.total_bytes,
            lines=moment.ledger.lines,
            residual_bytes=moment.ledger.residual_bytes,
        ),
    )


def _sources(readings: Sequence[Reading], settled: Settled) -> tuple[SourceReport, ...]:
    return tuple(
        _source(reading, candidate, settled.binding_source)
        for reading, candidate in zip(readings, settled.candidates, strict=True)
    )


def _source(reading: Reading, candidate: Candidate, binding_source: str) -> SourceReport:
    return SourceReport(
        reading=reading,
        binds=reading.source == binding_source,
        available_bytes=candidate.available_bytes,
        margin_bytes=candidate.margin_bytes,
    )

"""A comparison as values and as the document `ullage.compare/1`.

Every number is measured; None (null) where it was not.  Memory is int bytes, times say their unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

SCHEMA: Final = "ullage.compare/1"

SideName = Literal["stock", "stock_tuned", "ullage"]
SIDE_NAMES: Final[tuple[SideName, ...]] = ("stock", "stock_tuned", "ullage")


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One start of the engine, its load, and its end.

    `error` is the engine's own line, or ours: no memory left, a client that failed, no plugin.
    `warm_file_bytes` of files that should be cold stayed in memory; None: not known.
    """

    started: bool
    error: str | None
    kv_tokens: int | None = None
    kv_bytes: int | None = None
    start_s: float | None = None
    output_tok_s: float | None = None
    ttft_ms_median: float | None = None
    tpot_ms_median: float | None = None
    completed: int | None = None
    failed: int | None = None
    oom_kills: int | None = None
    peak_unreclaimable_bytes: int | None = None
    limit_hits: int | None = None
    refaulted_pages: int | None = None
    samples_per_s: float | None = None
    warm_file_bytes: int | None = None

    @property
    def served(self) -> bool:
        """Did it start, answer every request, and lose no process, to the limit or otherwise?"""
        answered = self.started and self.failed == 0
        return answered and self.error is None and not self.oom_kills


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """All starts with the same `flags` (beyond the shared ones).

    `notes` say what is doubtful about how the flags were found.
    """

    label: str
    flags: tuple[str, ...]
    starts: tuple[Start, ...]
    notes: tuple[str, ...] = ()

    @property
    def served(self) -> bool:
        return bool(self.starts) and all(start.served for start in self.starts)

    def values(self, name: str) -> list[float]:
        """The known values of one field of `Start`, over the starts."""
        found = (getattr(start, name) for start in self.starts)
        return [value for value in found if value is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    cgroup: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What was the same on all sides.  `memory_bytes` is None where no limit was enforced.

    A side with fewer than `starts` starts was not finished, or its search found nothing.
    """

    model: str
    starts: int
    memory_bytes: int | None
    files: Literal["cold", "warm"]
    mode: Literal["eager", "compiled"]
    dtype: str
    weights_bytes: int
    kv_token_bytes: int | None
    flags: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    concurrency: int
    prompts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    machine: Machine
    versions: Mapping[str, str]
    settings: Settings
    sides: Mapping[SideName, Side]


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as the JSON document that schemas/compare-1.schema.json describes."""
    return {
        "schema": SCHEMA,
        "not_modeled": [],
        "machine": dataclasses.asdict(comparison.machine),
        "versions": dict(comparison.versions),
        "settings": _lists(dataclasses.asdict(comparison.settings)),
        "sides": {name: _side(comparison.sides[name]) for name in comparison.sides},
    }


def _side(side: Side) -> dict[str, Any]:
    starts = [dataclasses.asdict(start) for start in side.starts]
    return {
        "label": side.label,
        "flags": list(side.flags),
        "notes": list(side.notes),
        "starts": starts,
    }


def _lists(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}

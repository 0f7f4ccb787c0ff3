"""Lines of an engine's log with the time of each to the millisecond, and what lies between them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_FORMAT: Final = "@%(created).3f %(levelname)s [%(filename)s:%(lineno)d] %(message)s"
_STAMP: Final = re.compile(r"^@(\d+\.\d{3}) ")


def logging_variables(folder: Path) -> tuple[tuple[str, str], ...]:
    """Variables that make vLLM stamp its lines so; its own format has whole seconds.

    VLLM_LOGGING_CONFIG_PATH names a file for `logging.config.dictConfig` (vllm/logger.py).
    """
    config: dict[str, Any] = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"stamped": {"class": "logging.Formatter", "format": _FORMAT}},
        "handlers": {
            "stamped": {
                "class": "logging.StreamHandler",
                "formatter": "stamped",
                "stream": "ext://sys.stdout",
            }
        },
        "loggers": {"vllm": {"handlers": ["stamped"], "level": "INFO", "propagate": False}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "logging.json"
    path.write_text(json.dumps(config))
    return (("VLLM_LOGGING_CONFIG_PATH", str(path)),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """The moment at which a phase ended; `at_s` is Unix time."""

    phase: str
    at_s: float


def events(lines: Iterable[str], ends: Sequence[tuple[str, re.Pattern[str]]]) -> list[Event]:
    """For each pattern the first line that has it, in the order of time."""
    found: dict[str, float] = {}
    for line in lines:
        stamp = _STAMP.match(line)
        if stamp is None:
            continue
        for phase, pattern in ends:
            if phase not in found and pattern.search(line):
                found[phase] = float(stamp[1])
    ordered = sorted(found.items(), key=lambda each: each[1])
    return [Event(phase=phase, at_s=at_s) for phase, at_s in ordered]


def durations(found: Sequence[Event]) -> dict[str, float]:
    """Seconds of each phase: from the end of the one before it.  The first only begins."""
    return {
        event.phase: round(event.at_s - before.at_s, 3)
        for before, event in itertools.pairwise(found)
    }

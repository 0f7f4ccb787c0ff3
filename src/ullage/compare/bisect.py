"""The next value to try, from the values tried: bisection with the engine's own hints.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ullage.units import MIB, align_down

Verdict = Literal["works", "too_much", "too_little"]

STEP_BYTES: Final = 64 * MIB
STEP_SHARE: Final = 0.03


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One value that was tried.  `hint_bytes` is a value that the refusal says would do."""

    value_bytes: int
    verdict: Verdict
    hint_bytes: int | None = None


def bounds(probes: Sequence[Probe], upper_bytes: int) -> tuple[int, int]:
    """The highest value that is not too much, and the lowest that is; `upper_bytes` without one."""
    low = [probe.value_bytes for probe in probes if probe.verdict != "too_much"]
    high = [probe.value_bytes for probe in probes if probe.verdict == "too_much"]
    return max(low, default=0), min(high, default=upper_bytes)


def next_value(probes: Sequence[Probe], upper_bytes: int) -> int | None:
    """The value to try next, in whole MiB; None once the bounds are within 64 MiB or 3 %.

    A hint of the last probe is taken when it lies between the bounds, else their middle.
    """
    low, high = bounds(probes, upper_bytes)
    if high - low <= max(STEP_BYTES, int(low * STEP_SHARE)):
        return None
    hint = probes[-1].hint_bytes if probes else None
    if hint is not None and low < align_down(hint, MIB) < high:
        return align_down(hint, MIB)
    return align_down((low + high) // 2, MIB)

"""Stock's best working setting, as a patient user finds it: bisection over both of its knobs.

A setting works when the engine starts, answers every request of the load, and loses no process to
the limit, three times in a row: near the limit a setting serves once and is killed the next time.
Both knobs are searched in bytes; the better result wins, by KV tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.compare.bisect import Probe, Verdict, next_value
from ullage.compare.engine_log import available_bytes, requested_for_kv_bytes
from ullage.compare.load import failed_in_client
from ullage.compare.starts import Phase, SidePlan, Trial, run_start, tuned
from ullage.report.comparison import Start
from ullage.units import GIB, gib

# The log rounds to 0.01 GiB; a hint taken at face value would be refused again half of the time.
ROUNDING_BYTES: Final = GIB // 100
STARTS: Final = 3  # that a setting must serve


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """A memory flag of the stock engine, and its value for a number of bytes."""

    flag: str
    value: Callable[[int], str]

    def flags(self, value_bytes: int) -> tuple[str, ...]:
        return (self.flag, self.value(value_bytes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A setting and what became of it."""

    flags: tuple[str, ...]
    start: Start


def utilization(total_bytes: int) -> Knob:
    """The share of `total_bytes`, rounded down to four digits."""
    return Knob(
        flag="--gpu-memory-utilization",
        value=lambda value_bytes: f"{value_bytes * 10_000 // total_bytes / 10_000:.4f}",
    )


EXPLICIT: Final = Knob(flag="--kv-cache-memory-bytes", value=str)


def tune_stock(
    trial: Trial, total_bytes: int, phase: Phase, so_far: Callable[[SidePlan], None]
) -> SidePlan:
    """The side "stock, best by hand"; without flags where no setting works.

    After each start `so_far` is told what was tried, as the notes of a side without flags.
    """
    told: list[str] = []

    def start(flags: tuple[str, ...], number: int) -> Start:
        found = _try(trial, flags, number, phase)
        told.append(f"{' '.join(flags)}, start {number}: {outcome(found)}")
        so_far(tuned((), tuple(told)))
        return found

    tried: list[Tried] = []
    for knob in (EXPLICIT, utilization(total_bytes)):
        tried += search(knob, total_bytes, lambda flags: start(flags, 1))
    flags, fell = lasting(tried, start)
    return tuned(flags or (), (*doubts(tried), *fell))


def lasting(
    tried: Sequence[Tried], again: Callable[[tuple[str, ...], int], Start]
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The flags that serve `STARTS` times, the most KV tokens first; and what fell before them."""
    fell: list[str] = []
    working = [one for one in tried if one.start.served and one.start.kv_tokens]
    for one in sorted(working, key=lambda one: one.start.kv_tokens or 0, reverse=True):
        for number in range(2, STARTS + 1):
            start = again(one.flags, number)
            if not start.served:
                fell.append(
                    f"{' '.join(one.flags)} ({one.start.kv_tokens:,} tokens) served once, and at "
                    f"start {number}: {outcome(start)}"
                )
                break
        else:
            return one.flags, tuple(fell)
    return None, tuple(fell)


def doubts(tried: Sequence[Tried]) -> tuple[str, ...]:
    """Probes that failed for no reason of memory; the search took them for too much nonetheless."""
    return tuple(
        f"{' '.join(one.flags)} was taken for too much, although {_client_reason(one.start)}"
        for one in tried
        if failed_in_client(one.start)
    )


def _client_reason(start: Start) -> str:
    return start.error or f"the engine lived and {start.failed} requests failed"


def search(knob: Knob, total_bytes: int, run: Callable[[tuple[str, ...]], Start]) -> list[Tried]:
    """Probe one knob until its best value is known to 64 MiB or 3 %."""
    probes: list[Probe] = []
    tried: list[Tried] = []
    while (value_bytes := next_value(probes, total_bytes)) is not None:
        flags = knob.flags(value_bytes)
        start = run(flags)
        tried.append(Tried(flags=flags, start=start))
        probes.append(probe(value_bytes, start))
    return tried


def probe(value_bytes: int, start: Start) -> Probe:
    """What a start says about its value."""
    if start.served:
        return Probe(value_bytes=value_bytes, verdict="works")
    error = start.error or ""
    wanted, available = requested_for_kv_bytes(error), available_bytes(error)
    verdict: Verdict = "too_much"
    hint = None
    if wanted is not None and wanted <= 0:
        verdict, hint = "too_little", None
    elif _cache_too_small(error):
        verdict = "too_little"
    elif available is not None:
        # At start-up the whole value must be available; later what is wanted beyond weights must.
        excess = (wanted if wanted is not None else value_bytes) - available
        hint = value_bytes - excess - ROUNDING_BYTES
    return Probe(value_bytes=value_bytes, verdict=verdict, hint_bytes=hint)


def _cache_too_small(error: str) -> bool:
    """vLLM's refusal of a cache that holds no single sequence (v1/core/kv_cache_utils.py)."""
    return "max seq len" in error or "No available memory for the cache blocks" in error


def _try(trial: Trial, flags: tuple[str, ...], number: int, phase: Phase) -> Start:
    directory = trial.output / "tuning" / f"{'-'.join(flags).lstrip('-')}-{number}"
    title = f"tuning stock with {flags[0]} {flags[1]}, start {number}"
    start = run_start(trial, tuned(flags), directory, lambda text: phase(f"{title}: {text}"))
    phase(f"{title}: {outcome(start)}")
    return start


def outcome(start: Start) -> str:
    """One probe in a few words."""
    if start.served:
        size = "" if start.kv_bytes is None else f", {gib(start.kv_bytes)}"
        return f"works with {start.kv_tokens} KV tokens{size}"
    if not start.started:
        return "refused"
    if failed_in_client(start):
        return f"not for lack of memory: {_client_reason(start)}"
    return f"{start.failed} requests failed, {start.oom_kills} OOM kills"

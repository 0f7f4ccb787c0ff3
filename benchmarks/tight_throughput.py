"""Does an engine that fills its container serve as fast as one with room to spare?

The demo model with ullage in a memory cgroup of 4 GiB, and in one twice as large where ullage holds
the additional room back (ULLAGE_MARGIN), so that both have the same KV cache as far as two starts
have the same; what each had is in the table.  Not an explicit size: ullage leaves that to stock,
which makes its cache of small pages, and not only the room would differ.  The load needs four
fifths of the cache, so that its size does not matter: no request may be preempted.  The load runs
once uncounted and once counted, after files were made cold.  One start of each is a pair, and which
comes first alternates.  The ratio of a pair is output tokens a second in the tight one, over those
in the large one.

    python benchmarks/tight_throughput.py             seven pairs (about an hour and a half)
    python benchmarks/tight_throughput.py --pairs 1   a first try
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from harness.client import Client
from harness.load import fixed_load
from harness.record import (
    RESULTS,
    Record,
    Spread,
    command_line,
    logs_below,
    markdown_table,
    spread,
)
from harness.serving import Engine, demo_trial, serving, with_more_room, with_requests
from ullage.cli.progress import phases
from ullage.compare.interrupt import interruptible
from ullage.compare.starts import ULLAGE, Phase, SidePlan, Trial
from ullage.errors import UllageError
from ullage.units import gib, parse_size

GOAL: Final = "A median ratio of at least 0.95."
RATIO: Final = 0.95


async def loaded(engine: Engine, trial: Trial, phase: Phase) -> dict[str, Any]:
    async with Client(engine.server.port) as client:
        phase("load, uncounted")
        await fixed_load(client, trial.load, seed=1)
        phase("load, counted")
        counted = await fixed_load(client, trial.load, seed=2)
    return {
        "error": None,
        "kv_bytes": engine.kv_bytes,
        "oom_kills": engine.group.oom_kills(),
        **dataclasses.asdict(counted),
    }


def run_side(trial: Trial, side: SidePlan, directory: Path, phase: Phase) -> dict[str, Any]:
    try:
        with serving(trial, side, directory, phase) as engine:
            return asyncio.run(loaded(engine, trial, phase))
    except UllageError as error:
        return {"error": str(error)}


def run_pair(trial: Trial, number: int, logs: Path, phase: Phase) -> dict[str, Any]:
    """The tight one first in odd pairs."""
    sides = {"tight": (trial, ULLAGE), "large": with_more_room(trial, ULLAGE)}
    order = list(sides) if number % 2 else list(reversed(sides))
    pair: dict[str, Any] = {"number": number, "order": order}
    for name in order:

        def told(text: str, name: str = name) -> None:
            phase(f"pair {number}, {name}: {text}")

        pair[name] = run_side(*sides[name], logs / f"{number}-{name}", told)
    return {**pair, "ratio": ratio(pair["tight"], pair["large"])}


def ratio(tight: dict[str, Any], large: dict[str, Any]) -> float | None:
    """None where a side failed, lost a request, or had to preempt one.  Pure."""
    if not all(whole(side) for side in (tight, large)):
        return None
    return round(float(tight["output_tok_s"]) / float(large["output_tok_s"]), 4)


def whole(side: dict[str, Any]) -> bool:
    return side["error"] is None and side["failed"] == 0 and side["preemptions"] == 0


def ratios(pairs: Sequence[dict[str, Any]]) -> Spread:
    return spread([pair["ratio"] for pair in pairs])


def reached(pairs: Sequence[dict[str, Any]]) -> bool:
    """Every pair counts, and the median is high enough."""
    told = ratios(pairs)
    return told.count == len(pairs) and told.median is not None and told.median >= RATIO


def table(pairs: Sequence[dict[str, Any]]) -> str:
    header = ["pair", "first", "ratio", "tight, tok/s", "large, tok/s", "KV tight", "KV large"]
    rows = [row(pair) for pair in pairs]
    return f"{markdown_table([*header, 'error'], rows)}\n\nRatio: {ratios(pairs).text(3)}"


def row(pair: dict[str, Any]) -> list[object]:
    tight, large = pair["tight"], pair["large"]
    return [
        pair["number"],
        pair["order"][0],
        pair["ratio"],
        tight.get("output_tok_s"),
        large.get("output_tok_s"),
        *(None if not side.get("kv_bytes") else gib(side["kv_bytes"]) for side in (tight, large)),
        tight["error"] or large["error"] or "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--memory", type=parse_size, default="4GiB", help="the tight limit")
    parser.add_argument("--requests", type=int, help="of each load; as many as run at once")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible(), phases() as phase:
        pairs = measure(options, phase)
    print(table(pairs))
    sys.exit(0 if reached(pairs) else 1)


def measure(options: argparse.Namespace, phase: Phase) -> list[dict[str, Any]]:
    logs = logs_below(options.output, "tight_throughput")
    trial, where = demo_trial(options.memory, "cold", logs)
    trial = with_requests(trial, options.requests)
    record = Record(
        name="tight_throughput",
        directory=options.output,
        question=__doc__.splitlines()[0],
        goal=GOAL,
        command=command_line(),
        where=where,
        settings={
            "limit_bytes": trial.limit_bytes,
            "flags": list(trial.settings.flags()),
            "load": dataclasses.asdict(trial.load),
        },
    )
    pairs: list[dict[str, Any]] = []
    for number in range(1, options.pairs + 1):
        pairs.append(run_pair(trial, number, logs, phase))
        record.write(pairs, {"ratio": dataclasses.asdict(ratios(pairs))}, table(pairs))
    return pairs


if __name__ == "__main__":
    main()

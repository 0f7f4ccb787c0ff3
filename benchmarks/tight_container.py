"""Does an engine that fills its container serve as well as one with room to spare?

The demo model with ullage in a memory cgroup of 4 GiB, and in one twice as large where ullage holds
the additional room back (ULLAGE_MARGIN), so that both have the same KV cache as far as two starts
have the same; what each had is in the table.  Not an explicit size: ullage leaves that to stock,
which makes its cache of small pages, and not only the room would differ.  The load needs four
fifths of the cache, so that its size does not matter: no request may be preempted.  It runs once
uncounted and once counted.  One start of each is a pair, and which comes first alternates; pairs
begin with cold and with warm files in turn.

Counted are output tokens a second, whose ratio in a pair is the tight one's over the large one's,
and file pages that the kernel had to read again (workingset_refault_file of the group).

    python benchmarks/tight_container.py             ten pairs (about an hour and a half)
    python benchmarks/tight_container.py --pairs 2   a first try
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
    command_line,
    logs_below,
    markdown_table,
    spread,
)
from harness.serving import Engine, demo_trial, serving, with_more_room, with_requests
from ullage.cli.progress import phases
from ullage.compare.files import FileState
from ullage.compare.interrupt import interruptible
from ullage.compare.starts import ULLAGE, Phase, SidePlan, Trial
from ullage.devices import host
from ullage.errors import UllageError
from ullage.units import gib, parse_size

GOAL: Final = (
    "A median ratio of at least 0.95, and in the median no more pages read again than in the large "
    "container, cold and warm."
)
RATIO: Final = 0.95
FILES: Final[tuple[FileState, ...]] = ("cold", "warm")


def refaults(engine: Engine) -> int | None:
    return host.read_group(engine.group.path).parts.file_refaults


async def loaded(engine: Engine, trial: Trial, phase: Phase) -> dict[str, Any]:
    async with Client(engine.server.port) as client:
        phase("load, uncounted")
        await fixed_load(client, trial.load, seed=1)
        phase("load, counted")
        before = refaults(engine)
        counted = await fixed_load(client, trial.load, seed=2)
        after = refaults(engine)
    return {
        "error": None,
        "kv_bytes": engine.kv_bytes,
        "oom_kills": engine.group.oom_kills(),
        "refaulted_pages_in_start_and_first_load": before,
        "refaulted_pages": None if before is None or after is None else after - before,
        **dataclasses.asdict(counted),
    }


def run_side(trial: Trial, side: SidePlan, directory: Path, phase: Phase) -> dict[str, Any]:
    try:
        with serving(trial, side, directory, phase) as engine:
            return asyncio.run(loaded(engine, trial, phase))
    except UllageError as error:
        return {"error": str(error)}


def files_of(number: int) -> FileState:
    return FILES[(number - 1) % len(FILES)]


def run_pair(trial: Trial, number: int, logs: Path, phase: Phase) -> dict[str, Any]:
    """The tight one first in the first two pairs of four: so each comes first, cold and warm."""
    trial = dataclasses.replace(trial, files=files_of(number))
    sides = {"tight": (trial, ULLAGE), "large": with_more_room(trial, ULLAGE)}
    order = list(sides) if (number - 1) % 4 < len(FILES) else list(reversed(sides))
    pair: dict[str, Any] = {"number": number, "files": trial.files, "order": order}
    for name in order:

        def told(text: str, name: str = name) -> None:
            phase(f"pair {number}, {trial.files}, {name}: {text}")

        pair[name] = run_side(*sides[name], logs / f"{number}-{name}", told)
    return {**pair, "ratio": ratio(pair["tight"], pair["large"])}


def ratio(tight: dict[str, Any], large: dict[str, Any]) -> float | None:
    """None where a side failed, lost a request, or had to preempt one.  Pure."""
    if not all(whole(side) for side in (tight, large)):
        return None
    return round(float(tight["output_tok_s"]) / float(large["output_tok_s"]), 4)


def whole(side: dict[str, Any]) -> bool:
    return side["error"] is None and side["failed"] == 0 and side["preemptions"] == 0


def summary(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all pairs, and for each state of the files."""
    return {
        "all": of_state(pairs),
        **{files: of_state([pair for pair in pairs if pair["files"] == files]) for files in FILES},
    }


def of_state(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def again(side: str) -> Any:
        return dataclasses.asdict(spread([pair[side].get("refaulted_pages") for pair in pairs]))

    return {
        "pairs": len(pairs),
        "ratio": dataclasses.asdict(spread([pair["ratio"] for pair in pairs])),
        "refaulted_pages": again("tight"),
        "refaulted_pages_twice_as_large": again("large"),
    }


def reached(pairs: Sequence[dict[str, Any]]) -> bool:
    """Every pair counts, the median is high enough, and no state reads more pages again."""
    told = summary(pairs)
    ratios = told["all"]["ratio"]
    enough = ratios["count"] == len(pairs) and ratios["count"] and ratios["median"] >= RATIO
    return bool(enough) and all(no_more_read(told[files]) for files in FILES)


def no_more_read(state: dict[str, Any]) -> bool:
    """True of a state that has no pairs."""
    tight = state["refaulted_pages"]["median"]
    large = state["refaulted_pages_twice_as_large"]["median"]
    return not state["pairs"] or (tight is not None and large is not None and tight <= large)


def table(pairs: Sequence[dict[str, Any]]) -> str:
    header = ["pair", "files", "first", "ratio", "tight, tok/s", "large, tok/s"]
    header += ["read again", "read again, large", "KV tight", "KV large", "error"]
    rows = [row(pair) for pair in pairs]
    return f"{markdown_table(header, rows)}\n\n{medians(summary(pairs))}"


def medians(told: dict[str, Any]) -> str:
    return "\n".join(in_words(name, state) for name, state in told.items() if state["pairs"])


def in_words(name: str, state: dict[str, Any]) -> str:
    ratios, tight = state["ratio"], state["refaulted_pages"]
    return (
        f"- {name}: ratio {ratios['median']} ({ratios['min']} to {ratios['max']}, "
        f"{ratios['count']} pairs); pages read again {tight['median']} against "
        f"{state['refaulted_pages_twice_as_large']['median']} (medians)"
    )


def row(pair: dict[str, Any]) -> list[object]:
    sides = pair["tight"], pair["large"]
    return [
        pair["number"],
        pair["files"],
        pair["order"][0],
        pair["ratio"],
        *(side.get("output_tok_s") for side in sides),
        *(side.get("refaulted_pages") for side in sides),
        *(None if not side.get("kv_bytes") else gib(side["kv_bytes"]) for side in sides),
        "; ".join(side["error"] for side in sides if side["error"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--memory", type=parse_size, default="4GiB", help="the tight limit")
    parser.add_argument("--requests", type=int, help="of each load; as many as run at once")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible(), phases() as phase:
        pairs = measure(options, phase)
    print(table(pairs))
    sys.exit(0 if reached(pairs) else 1)


def measure(options: argparse.Namespace, phase: Phase) -> list[dict[str, Any]]:
    logs = logs_below(options.output, "tight_container")
    trial, where = demo_trial(options.memory, "cold", logs)
    trial = with_requests(trial, options.requests)
    record = Record(
        name="tight_container",
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
        record.write(pairs, summary(pairs), table(pairs))
    return pairs


if __name__ == "__main__":
    main()

"""How much longer does a start with ullage take than a stock one, and where does the time go?

From "weights loaded" to the first healthy answer, in a memory cgroup of 8 GiB: stock with an
explicit size for its KV cache that starts there, ullage without a memory flag.  Every start with
caches of its own, as a container's first start, and with warm files; one of each is a pair, and
which comes first alternates.  The time is cut at lines of the engine's log, which it is made to
stamp to the millisecond, so that the parts add up to the whole.  The part that the warm-up takes is
taken apart further: the steps that ullage names in its log, and the time in which a compiler ran in
the group; what neither explains is printed as the residual.

    python benchmarks/start_time.py              five rounds (about 20 minutes)
    python benchmarks/start_time.py --rounds 1   a first try
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from harness.record import RESULTS, Record, command_line, logs_below, markdown_table, spread
from harness.serving import demo_trial, log_lines, serving
from harness.stamps import Event, durations, events, logging_variables
from ullage.cli.progress import phases
from ullage.compare.interrupt import interruptible
from ullage.compare.starts import STOCK, ULLAGE, Phase, SidePlan, Trial
from ullage.errors import UllageError
from ullage.units import gib, parse_size

GOAL: Final = "Reported, and no part of it unexplained."
BEGINNING: Final = "weights loaded"
WARM_UP: Final = "warm-up and measuring"
SIDES: Final = ("stock", "ullage")
READY: Final = "first healthy answer"
# What the line says that ends each phase; vLLM 0.32, and ullage's own.
ENDS: Final = (
    (BEGINNING, re.compile(r"Loading weights took")),
    ("weights packed, engine asks for its cache", re.compile(r"Using \w+ KV cache layout")),
    ("stock: size taken", re.compile(r"(Explicitly|Auto) set \(")),
    (WARM_UP, re.compile(r"ullage warm-up: ")),
    ("size decided", re.compile(r"ullage: \d+ KV cache blocks fit")),
    ("blocks planned", re.compile(r"ullage commits \d+ blocks")),
    ("memory committed", re.compile(r"ullage committed \d+ blocks")),
    ("engine made", re.compile(r"init engine \(profile, create kv cache, warmup model\) took")),
    ("front end made", re.compile(r"Starting vLLM server on")),
)
# "ullage warm-up: largest prefill 7.2 s, peak 1.8 GiB, kept ...".
STEP: Final = re.compile(r"([a-z][a-z -]*[a-z]) ([\d.]+) s\b")


def side_of(name: str, kv_bytes: int, folder: Path) -> SidePlan:
    """Both with stamps; stock with a size."""
    stamps = logging_variables(folder)
    if name == "stock":
        flags = ("--kv-cache-memory-bytes", str(kv_bytes))
        return dataclasses.replace(STOCK, flags=flags, variables=stamps)
    return dataclasses.replace(ULLAGE, variables=(*ULLAGE.variables, *stamps))


def run_side(trial: Trial, side: SidePlan, directory: Path, phase: Phase) -> dict[str, Any]:
    try:
        with serving(trial, side, directory, phase) as engine:
            ready = Event(phase=READY, at_s=time.time())
            lines = log_lines(engine.server.log)
            found = [*events(lines, ENDS), ready]
            began_s = found[0].at_s
            return {
                "error": None if found[0].phase == BEGINNING else f"no line: {BEGINNING}",
                "start_s": engine.ready_s,
                "kv_bytes": engine.kv_bytes,
                "seconds": round(ready.at_s - began_s, 3),
                "phases": durations(found),
                "warm_up_steps": warm_up_steps(lines),
                "compiling_s": engine.compiler.seconds_between(began_s, ready.at_s),
            }
    except UllageError as error:
        return {"error": str(error)}


def warm_up_steps(lines: Sequence[str]) -> dict[str, float]:
    """Seconds of the steps that ullage names."""
    told = next((line for line in lines if "ullage warm-up: " in line), "")
    return {name: float(value) for name, value in STEP.findall(told)}


def residual_s(run: Mapping[str, Any]) -> float | None:
    """What neither a named step nor a compiler explains of the warm-up; None where there was none.

    Pure.  A compiler that ran in another phase would make it too small.
    """
    if run["error"] is not None or WARM_UP not in run["phases"]:
        return None
    explained = sum(run["warm_up_steps"].values()) + run["compiling_s"]
    return round(float(run["phases"][WARM_UP] - explained), 1)


def run_pair(trial: Trial, number: int, kv_bytes: int, logs: Path, phase: Phase) -> dict[str, Any]:
    """Stock first in odd pairs."""
    order = ["stock", "ullage"] if number % 2 else ["ullage", "stock"]
    pair: dict[str, Any] = {"number": number, "order": order}
    for name in order:

        def told(text: str, name: str = name) -> None:
            phase(f"round {number}, {name}: {text}")

        side = side_of(name, kv_bytes, logs)
        pair[name] = run_side(trial, side, logs / f"{number}-{name}", told)
    both = [pair[name].get("seconds") for name in ("ullage", "stock")]
    return {**pair, "more_s": None if None in both else round(both[0] - both[1], 3)}


def summary(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Spreads over the rounds: of each side, of each of its phases, and of the difference."""
    told: dict[str, Any] = {"more_s": _spread([pair["more_s"] for pair in pairs])}
    for name in ("stock", "ullage"):
        runs = [pair[name] for pair in pairs if pair[name]["error"] is None]
        phases_seen = dict.fromkeys(phase for run in runs for phase in run["phases"])
        told[name] = {
            "seconds": _spread([run["seconds"] for run in runs]),
            "phases": {
                each: _spread([r["phases"].get(each) for r in runs]) for each in phases_seen
            },
            "compiling_s": _spread([run["compiling_s"] for run in runs]),
            "residual_s": _spread([residual_s(run) for run in runs]),
        }
        steps = dict.fromkeys(step for run in runs for step in run["warm_up_steps"])
        told[name]["warm_up_steps"] = {
            each: _spread([run["warm_up_steps"].get(each) for run in runs]) for each in steps
        }
    return told


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    return dataclasses.asdict(spread(values))


def table(pairs: Sequence[Mapping[str, Any]]) -> str:
    told = summary(pairs)
    header = ["part, seconds (medians)", "stock", "ullage"]
    names = dict.fromkeys([*told["stock"]["phases"], *told["ullage"]["phases"]])
    rows = [[name, *(_median(told[side]["phases"].get(name)) for side in SIDES)] for name in names]
    rows.append(["together", *(_median(told[side]["seconds"]) for side in SIDES)])
    inside = [
        [f"in the {WARM_UP}: {name}", "", _median(each)]
        for name, each in told["ullage"]["warm_up_steps"].items()
    ]
    inside.append(["compiling", *(_median(told[side]["compiling_s"]) for side in SIDES)])
    inside.append([f"residual of the {WARM_UP}", "", _median(told["ullage"]["residual_s"])])
    runs = [_row(pair) for pair in pairs]
    each = markdown_table(
        ["round", "first", "stock, s", "ullage, s", "more, s", "KV", "error"], runs
    )
    return f"{each}\n\n{markdown_table(header, [*rows, *inside])}"


def _median(told: Mapping[str, Any] | None) -> str:
    return "" if told is None or told["median"] is None else f"{told['median']:.1f}"


def _row(pair: Mapping[str, Any]) -> list[object]:
    sides = [pair[name] for name in SIDES]
    sizes = ["?" if not side.get("kv_bytes") else gib(side["kv_bytes"]) for side in sides]
    return [
        pair["number"],
        pair["order"][0],
        *(side.get("seconds") for side in sides),
        pair["more_s"],
        " and ".join(sizes),
        "; ".join(side["error"] for side in sides if side["error"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=parse_size, default="8GiB", help="the limit, such as 8GiB")
    parser.add_argument(
        "--stock-kv", type=parse_size, default="4GiB", help="stock's --kv-cache-memory-bytes"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible(), phases() as phase:
        pairs = measure(options, phase)
    print(table(pairs))
    sys.exit(0 if all(pair["more_s"] is not None for pair in pairs) else 1)


def measure(options: argparse.Namespace, phase: Phase) -> list[Mapping[str, Any]]:
    logs = logs_below(options.output, "start_time")
    trial, where = demo_trial(options.memory, "warm", logs)
    record = Record(
        name="start_time",
        directory=options.output,
        question=__doc__.splitlines()[0],
        goal=GOAL,
        command=command_line(),
        where=where,
        settings={
            "limit_bytes": trial.limit_bytes,
            "flags": list(trial.settings.flags()),
            "stock_kv_bytes": options.stock_kv,
        },
    )
    pairs: list[Mapping[str, Any]] = []
    for number in range(1, options.rounds + 1):
        pairs.append(run_pair(trial, number, options.stock_kv, logs, phase))
        record.write(pairs, summary(pairs), table(pairs))
    return pairs


if __name__ == "__main__":
    main()

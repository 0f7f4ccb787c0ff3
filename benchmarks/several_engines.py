"""Two and three engines in one memory group: does each get the same KV cache in every start order?

A small model, each engine with its share and a batch size of its own, 2 GiB of limit an engine (or
the demo model, and 4 GiB).  Engines start one after the other in every order, and once all at the
same time; the whole is repeated.  All starts share one lease folder, as a user's do.  Written anew
after each order; ends with 1 where the count of an engine's blocks differs by more than one, where
an engine does not start, or where the kernel kills.

    python benchmarks/several_engines.py                         about an hour on 2 cores
    python benchmarks/several_engines.py --demo --repeats 1      the demo model, once in each order,
                                         to results/several_engines_demo.json
    python benchmarks/several_engines.py --repeats 1 --only 1-0 0+1
                                         a look at two orders of two engines, + is at the same time
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.record import RESULTS, Record, command_line, logs_below, markdown_table
from harness.series import LIMIT_BYTES, small_settings
from harness.serving import demo_trial, launched, log_lines
from ullage.cli.progress import phases
from ullage.compare.container import container
from ullage.compare.counters import Sampler
from ullage.compare.interrupt import interruptible
from ullage.compare.run import check_machine, check_place
from ullage.compare.server import Server, ServerSettings
from ullage.compare.starts import ULLAGE, Phase, SidePlan
from ullage.errors import EngineFailed, UllageError
from ullage.units import GIB, gib

GOAL: Final = (
    "Each engine's blocks differ by at most one over all orders; every engine starts; no OOM kill."
)
SHARES: Final = {2: ("1/2", "1/2"), 3: ("1/3", "1/3", "1/3")}
STEP_TOKENS: Final = (2048, 1024, 512)
COMMITTED: Final = re.compile(r"ullage committed (\d+) blocks")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """`order`: engines by number; `together`: all at the same time; `runtime`: for the leases."""

    settings: ServerSettings
    limit_bytes: int
    order: tuple[int, ...]
    together: bool
    runtime: Path
    logs: Path


def orders(number: int) -> dict[str, tuple[int, ...]]:
    """Engines in the order of their start, by a name with a + where all start at the same time."""
    every = itertools.permutations(range(number))
    one_by_one = {"-".join(map(str, order)): order for order in every}
    return {**one_by_one, "+".join(map(str, range(number))): tuple(range(number))}


def run_once(trial: Trial) -> dict[str, Any]:
    """Blocks of each engine, by its number; None where it did not start."""
    blocks: dict[int, int | None] = dict.fromkeys(sorted(trial.order))
    errors: list[str] = []
    counted: dict[str, int | None] = {"oom_kills": None, "peak_unreclaimable_bytes": None}
    trial.logs.mkdir(parents=True)
    try:
        check_machine(trial.limit_bytes)
        with ExitStack() as undo:
            inside = undo.enter_context(container(trial.limit_bytes))
            sampler = undo.enter_context(Sampler(inside.group))
            servers = {}
            for engine in trial.order:
                log = trial.logs / f"{engine}.log"
                settings, side = engine_of(trial, engine)
                servers[engine] = undo.enter_context(launched(inside, settings, side, log))
                if not trial.together:
                    blocks[engine] = committed(servers[engine], errors)
            if trial.together:
                blocks |= {engine: committed(server, errors) for engine, server in servers.items()}
            counters = sampler.counters()
            counted = {name: getattr(counters, name) for name in counted}
    except UllageError as error:
        errors.append(str(error))
    return {
        "engines": len(trial.order),
        "limit_bytes": trial.limit_bytes,
        "order": list(trial.order),
        "together": trial.together,
        "blocks": [blocks[engine] for engine in sorted(blocks)],
        "errors": errors,
        **counted,
    }


def engine_of(trial: Trial, engine: int) -> tuple[ServerSettings, SidePlan]:
    """Its own batch size, its share, and the lease folder of all."""
    settings = dataclasses.replace(trial.settings, max_num_batched_tokens=STEP_TOKENS[engine])
    variables = (
        *ULLAGE.variables,
        ("ULLAGE_SHARE", SHARES[len(trial.order)][engine]),
        ("XDG_RUNTIME_DIR", str(trial.runtime)),
    )
    return settings, dataclasses.replace(ULLAGE, variables=variables)


def committed(server: Server, errors: list[str]) -> int | None:
    try:
        server.wait_ready()
    except EngineFailed as error:
        errors.append(str(error))
        return None
    found = COMMITTED.findall("\n".join(log_lines(server.log)))
    return int(found[-1]) if found else None


def spreads(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[int | None]]:
    """By the number of engines, each engine's most blocks less its fewest; None: a start failed."""
    answer: dict[str, list[int | None]] = {}
    for number in sorted({run["engines"] for run in runs}):
        columns = zip(*(run["blocks"] for run in runs if run["engines"] == number), strict=True)
        answer[str(number)] = [None if None in each else max(each) - min(each) for each in columns]
    return answer


def holds(runs: Sequence[Mapping[str, Any]]) -> bool:
    every = [spread for each in spreads(runs).values() for spread in each]
    unharmed = all(run["oom_kills"] == 0 for run in runs)
    return unharmed and all(spread is not None and spread <= 1 for spread in every)


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "spread_blocks": spreads(runs),
        "oom_kills": sum(run["oom_kills"] or 0 for run in runs),
        "failed": sum(bool(run["errors"]) for run in runs),
    }


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    header = ["engines", "order", "repeat", "blocks of each", "peak", "OOM kills", "error"]
    told = [
        f"- {number} engines: most less fewest blocks of each {_listed(each)}"
        for number, each in spreads(runs).items()
    ]
    return "\n\n".join((markdown_table(header, [row(run) for run in runs]), "\n".join(told)))


def row(run: Mapping[str, Any]) -> list[object]:
    peak_bytes = run["peak_unreclaimable_bytes"]
    return [
        run["engines"],
        ("+" if run["together"] else "-").join(map(str, run["order"])),
        run["repeat"],
        _listed(run["blocks"]),
        None if peak_bytes is None else gib(peak_bytes),
        run["oom_kills"],
        "; ".join(run["errors"]),
    ]


def _listed(values: Sequence[int | None]) -> str:
    return ", ".join("?" if value is None else str(value) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="these orders, such as 1-0 or 0+1")
    parser.add_argument("--demo", action="store_true", help="the demo model, at 4 GiB an engine")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible(), phases() as phase:
        runs = measure(options, phase)
    print(table(runs))
    sys.exit(0 if holds(runs) else 1)


def measure(options: argparse.Namespace, phase: Phase) -> list[Mapping[str, Any]]:
    name = "several_engines_demo" if options.demo else "several_engines"
    logs = logs_below(options.output, name)
    limit_bytes, settings, where = demo_model(logs) if options.demo else small_model()
    record = Record(
        name=name,
        directory=options.output,
        question=__doc__.splitlines()[0],
        goal=GOAL,
        command=command_line(),
        where=where,
        settings={
            "limit_bytes_each": limit_bytes,
            "flags": list(settings.flags()),
            "step_tokens": list(STEP_TOKENS),
            "shares": {str(number): list(shares) for number, shares in SHARES.items()},
        },
    )
    runs: list[Mapping[str, Any]] = []
    with tempfile.TemporaryDirectory() as runtime:
        for order, repeat, trial in trials(options, limit_bytes, settings, Path(runtime), logs):
            phase(f"{len(trial.order)} engines, {order}, {repeat + 1} of {options.repeats}")
            runs.append({**run_once(trial), "repeat": repeat})
            record.write(runs, summary(runs), table(runs))
    return runs


def demo_model(logs: Path) -> tuple[int, ServerSettings, str]:
    """The limit for each engine, its settings, and where limits are set."""
    demo, where = demo_trial(4 * GIB, "cold", logs)
    return 4 * GIB, dataclasses.replace(demo.settings, max_num_seqs=32), where


def small_model() -> tuple[int, ServerSettings, str]:
    where = check_place(LIMIT_BYTES)
    return LIMIT_BYTES, small_settings(), where


def trials(
    options: argparse.Namespace,
    limit_bytes: int,
    settings: ServerSettings,
    runtime: Path,
    logs: Path,
) -> Iterator[tuple[str, int, Trial]]:
    for number, repeat in itertools.product(SHARES, range(options.repeats)):
        for name, order in orders(number).items():
            if options.only and name not in options.only:
                continue
            yield (
                name,
                repeat,
                Trial(
                    settings=settings,
                    limit_bytes=number * limit_bytes,
                    order=order,
                    together="+" in name,
                    runtime=runtime,
                    logs=logs / f"{name}-{repeat + 1}",
                ),
            )


if __name__ == "__main__":
    main()

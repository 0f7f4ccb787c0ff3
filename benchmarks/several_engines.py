"""Two and three engines in one memory group: does each get the same KV cache in every start order?

The demo model, each engine with its share and a batch size of its own, 4 GiB of limit an engine.
Engines start one after the other in every order, and once all at the same time; the whole is
repeated.  All starts share one lease folder, as a user's do.  Writes
`results/several_engines.json` after each order; ends with 1 where the count of an engine's blocks
differs by more than one, where an engine does not start, or where the kernel kills.

    python benchmarks/several_engines.py                         about four hours on 2 cores
    python benchmarks/several_engines.py --repeats 1 --only 1-0 0+1
                                         a look at two orders of two engines, + is at the same time
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage.compare import machine
from ullage.compare.container import Container, container
from ullage.compare.counters import Sampler
from ullage.compare.interrupt import interruptible
from ullage.compare.model import cached_model, demo_shape
from ullage.compare.run import cpu_list
from ullage.compare.server import (
    Server,
    ServerSettings,
    environment,
    free_port,
    inherited_environment,
    running,
    server_command,
)
from ullage.errors import EngineFailed
from ullage.units import GIB

RESULTS: Final = Path(__file__).resolve().parent / "results"
SHARES: Final = {2: ("1/2", "1/2"), 3: ("1/3", "1/3", "1/3")}
STEP_TOKENS: Final = (2048, 1024, 512)
COMMITTED: Final = re.compile(r"ullage committed (\d+) blocks")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="these orders, such as 1-0 or 0+1")
    parser.add_argument("--memory-gib", type=int, default=4, help="of the limit, for each engine")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    shape = demo_shape(machine.preferred_dtype(), small=False)
    model = cached_model(shape, lambda _written_bytes: None)
    runs: list[dict[str, Any]] = []
    with interruptible(), tempfile.TemporaryDirectory() as runtime:
        for number, repeat in itertools.product(SHARES, range(options.repeats)):
            for name, order in orders(number).items():
                if options.only and name not in options.only:
                    continue
                trial = Trial(
                    model=model,
                    dtype=shape.dtype,
                    limit_bytes=options.memory_gib * number * GIB,
                    order=order,
                    together="+" in name,
                    runtime=Path(runtime),
                    logs=options.output / "logs" / time.strftime(f"several-%Y%m%d-%H%M%S-{name}"),
                )
                runs.append({"engines": number, "repeat": repeat, **start(trial)})
                print(runs[-1], file=sys.stderr, flush=True)
                write(runs, options.output)
    sys.exit(0 if holds(runs) else 1)


def orders(number: int) -> dict[str, tuple[int, ...]]:
    """Engines in the order of their start, by a name with a + where all start at the same time."""
    every = itertools.permutations(range(number))
    one_by_one = {"-".join(map(str, order)): order for order in every}
    return {**one_by_one, "+".join(map(str, range(number))): tuple(range(number))}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """`order`: engines by number; `together`: all at the same time; `runtime`: for the leases."""

    model: Path
    dtype: str
    limit_bytes: int
    order: tuple[int, ...]
    together: bool
    runtime: Path
    logs: Path


def start(trial: Trial) -> dict[str, Any]:
    """Blocks of each engine, by its number; None where it did not start."""
    blocks: dict[int, int | None] = {}
    errors: list[str] = []
    trial.logs.mkdir(parents=True)
    with ExitStack() as undo:
        inside = undo.enter_context(container(trial.limit_bytes))
        sampler = undo.enter_context(Sampler(inside.group))
        servers = {}
        for engine in trial.order:
            servers[engine] = undo.enter_context(started(trial, inside, engine))
            if not trial.together:
                blocks[engine] = committed(servers[engine], errors)
        if trial.together:
            blocks = {engine: committed(server, errors) for engine, server in servers.items()}
        counters = sampler.counters()
    return {
        "limit_bytes": trial.limit_bytes,
        "order": list(trial.order),
        "together": trial.together,
        "blocks": [blocks[engine] for engine in sorted(blocks)],
        "errors": errors,
        "oom_kills": counters.oom_kills,
        "peak_unreclaimable_bytes": counters.peak_unreclaimable_bytes,
    }


@contextmanager
def started(trial: Trial, inside: Container, engine: int) -> Iterator[Server]:
    cpus = cpu_list(os.sched_getaffinity(0))
    settings = ServerSettings(
        model=trial.model,
        dtype=trial.dtype,
        compiled=False,
        max_model_len=2048,
        max_num_batched_tokens=STEP_TOKENS[engine],
        max_num_seqs=32,
        cpus=cpus,
        port=None,
        extra=(),
    )
    side = {
        "ULLAGE": "1",
        "ULLAGE_STRICT": "1",
        "ULLAGE_SHARE": SHARES[len(trial.order)][engine],
        "XDG_RUNTIME_DIR": str(trial.runtime),
    }
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch:
        env = environment(inherited_environment(), side, Path(scratch), cpus)
        command = server_command(settings, (), port)
        with running(inside, command, env, trial.logs / f"{engine}.log", port) as server:
            yield server


def committed(server: Server, errors: list[str]) -> int | None:
    try:
        server.wait_ready()
    except EngineFailed as error:
        errors.append(str(error))
        return None
    found = COMMITTED.findall(server.log.read_text(errors="replace"))
    return int(found[-1]) if found else None


def spreads(runs: Sequence[dict[str, Any]]) -> dict[str, list[int | None]]:
    """By the number of engines, each engine's most blocks less its fewest; None: a start failed."""
    answer: dict[str, list[int | None]] = {}
    for number in sorted({run["engines"] for run in runs}):
        columns = zip(*(run["blocks"] for run in runs if run["engines"] == number), strict=True)
        answer[str(number)] = [None if None in each else max(each) - min(each) for each in columns]
    return answer


def holds(runs: Sequence[dict[str, Any]]) -> bool:
    every = [spread for each in spreads(runs).values() for spread in each]
    killed = any(run["oom_kills"] for run in runs)
    return not killed and all(spread is not None and spread <= 1 for spread in every)


def write(runs: Sequence[dict[str, Any]], directory: Path) -> None:
    head = ["git", "-C", str(RESULTS), "rev-parse", "--short=12", "HEAD"]
    result = {
        "schema": "ullage.bench.several_engines/1",
        "commit": subprocess.check_output(head, text=True).strip(),
        "command": "python benchmarks/several_engines.py",
        "machine": dataclasses.asdict(machine.describe("one memory group for all engines")),
        "versions": machine.versions(),
        "spread_blocks": spreads(runs),
        "oom_kills": sum(run["oom_kills"] or 0 for run in runs),
        "runs": runs,
    }
    directory.mkdir(exist_ok=True)
    (directory / "several_engines.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

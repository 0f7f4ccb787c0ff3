"""Two and three engines in one memory group: does each get the same KV cache in every start order?

The demo model, each engine with its share and a batch size of its own, 4 GiB of limit an engine.
Engines start one after the other in every order, and once all at the same time; the whole is
repeated.  All starts share one lease folder, as a user's do.  Writes
`results/several_engines.json` after each order; ends with 1 where the count of an engine's blocks
differs by more than one, where an engine does not start, or where the kernel kills.

    python benchmarks/several_engines.py                         about four hours on 2 cores
    python benchmarks/several_engines.py --engines 2 --repeats 1 --orders 1     a first look
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
from collections.abc import Sequence
from contextlib import ExitStack
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
    parser.add_argument("--engines", type=int, nargs="*", default=[2, 3], choices=[2, 3])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--orders", type=int, help="only the first so many orders")
    parser.add_argument("--memory-gib", type=int, default=4, help="of the limit, for each engine")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    shape = demo_shape(machine.preferred_dtype(), small=False)
    model = cached_model(shape, lambda _written_bytes: None)
    runs: list[dict[str, Any]] = []
    with interruptible(), tempfile.TemporaryDirectory() as runtime:
        for number, repeat in itertools.product(options.engines, range(options.repeats)):
            for order, together in orders(number)[: options.orders]:
                limit_bytes = options.memory_gib * number * GIB
                answer = start(model, shape.dtype, limit_bytes, order, together, Path(runtime))
                runs.append({"engines": number, "repeat": repeat, **answer})
                print(runs[-1], file=sys.stderr, flush=True)
                write(runs, options.output)
    sys.exit(0 if holds(runs) else 1)


def orders(number: int) -> list[tuple[tuple[int, ...], bool]]:
    """(engines in the order of their start, all at the same time?)"""
    one_by_one = [(order, False) for order in itertools.permutations(range(number))]
    return [*one_by_one, (tuple(range(number)), True)]


def start(
    model: Path,
    dtype: str,
    limit_bytes: int,
    order: Sequence[int],
    together: bool,
    runtime: Path,
) -> dict[str, Any]:
    """Blocks of each engine, by its number; None where it did not start."""
    blocks: dict[int, int | None] = dict.fromkeys(order)
    errors: list[str] = []
    with ExitStack() as undo:
        scratch = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        inside = undo.enter_context(container(limit_bytes))
        sampler = undo.enter_context(Sampler(inside.group))
        servers: dict[int, Server] = {}
        for engine in order:
            server = undo.enter_context(
                engine_in(inside, model, dtype, engine, len(order), scratch, runtime)
            )
            servers[engine] = server
            if not together:
                blocks[engine] = committed(server, errors)
        if together:
            blocks = {engine: committed(server, errors) for engine, server in servers.items()}
        counters = sampler.counters()
    return {
        "limit_bytes": limit_bytes,
        "order": list(order),
        "together": together,
        "blocks": [blocks[engine] for engine in sorted(blocks)],
        "errors": errors,
        "oom_kills": counters.oom_kills,
        "peak_unreclaimable_bytes": counters.peak_unreclaimable_bytes,
    }


def engine_in(
    inside: Container,
    model: Path,
    dtype: str,
    engine: int,
    number: int,
    scratch: Path,
    runtime: Path,
) -> Any:
    own = scratch / str(engine)
    own.mkdir()
    cpus = cpu_list(os.sched_getaffinity(0))
    settings = ServerSettings(
        model=model,
        dtype=dtype,
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
        "ULLAGE_SHARE": SHARES[number][engine],
        "XDG_RUNTIME_DIR": str(runtime),
    }
    port = free_port()
    env = environment(inherited_environment(), side, own, cpus)
    return running(inside, server_command(settings, (), port), env, own / "log", port)


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

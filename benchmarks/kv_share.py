"""What share of the memory that is truly left becomes KV cache?

    left = limit - unreclaimable memory without the KV cache - hot mapped file pages
    share = KV cache / left

Read from outside, when the server says that it is ready (/health) and before its first request.
Unreclaimable is what the group's counters call anonymous, shmem, kernel and locked file pages.  Hot
is what the engine's processes touch of their mapped files during one short request, by the plugin's
own rule: right after the counters were read, the references are reset (/proc/PID/clear_refs), the
request runs, and what is referenced then (/proc/PID/smaps) must stay in memory, whichever group is
charged for it.  The plain counters are in the document, so that the sum can be done again.

A second figure, which is no goal: share with the peak kept = KV cache / (left - transient peak of
the largest step), the peak as the plugin's own ledger in the log has it.  Memory of a step's peak
that went back to the kernel after the step is in `left`, and the next such step needs it again: no
KV cache can ever have it.  Where the heap keeps it, both figures are the same.

Whether what is left beside the cache suffices is for tight_container.py and stress.py.

    python benchmarks/kv_share.py               five starts each, cold and warm (15 minutes)
    python benchmarks/kv_share.py --starts 1    a first try
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from harness.client import Ask, Client
from harness.ledger import ledger_lines, size_bytes_of
from harness.load import TOKENS
from harness.record import RESULTS, Record, command_line, logs_below, markdown_table, spread
from harness.serving import Engine, demo_trial, log_lines, serving
from harness.shares import share, with_peak_kept
from ullage.cli.progress import phases
from ullage.compare.files import FileState
from ullage.compare.interrupt import interruptible
from ullage.compare.starts import ULLAGE, Phase, Trial
from ullage.devices import host
from ullage.errors import EngineFailed, UllageError
from ullage.units import gib, parse_size

GOAL: Final = "KV / left >= 0.93 in the median of 5 starts, cold and warm."
SHARE: Final = 0.93
FILES: Final[tuple[FileState, ...]] = ("cold", "warm")
# As the plugin's own look at the usual work: a short prefill, a short decode, heavy sampling.
USUAL: Final = Ask(
    kind="usual",
    prompt=tuple(TOKENS[:64]),
    output_tokens=8,
    extra={"logprobs": 5, "presence_penalty": 1.0, "repetition_penalty": 1.1, "temperature": 1.0},
)


async def at_ready(engine: Engine, client: Client, limit_bytes: int) -> dict[str, Any]:
    """The counters first; the request that shows what is hot comes after them."""
    parts = host.read_group(engine.group.path).parts
    pids = engine.group.pids()
    processes = host.read_processes(pids)
    host.forget_file_references(pids)
    await client.ask(USUAL)
    referenced_bytes = host.referenced_file_bytes(pids)
    if engine.kv_bytes is None:
        raise EngineFailed("the log does not say how large the KV cache is")
    told = share(
        limit_bytes=limit_bytes,
        kv_bytes=engine.kv_bytes,
        parts=parts,
        processes=processes,
        referenced_bytes=referenced_bytes,
    )
    return with_peak_kept(told, engine.kv_bytes, ledger_lines(log_lines(engine.server.log)))


async def measure_engine(engine: Engine, limit_bytes: int) -> dict[str, Any]:
    async with Client(engine.server.port) as client:
        told = await at_ready(engine, client, limit_bytes)
    return {
        **told,
        "kv_tokens": engine.kv_tokens,
        "kv_bytes": engine.kv_bytes,
        "oom_kills": engine.group.oom_kills(),
    }


def run_once(trial: Trial, files: FileState, directory: Path, phase: Phase) -> dict[str, Any]:
    trial = dataclasses.replace(trial, files=files)
    assert trial.limit_bytes is not None  # noqa: S101 - demo_trial sets one
    told: dict[str, Any] = {"files": files, "error": None}
    try:
        with serving(trial, ULLAGE, directory, phase) as engine:
            phase("reading the counters")
            ledger = ledger_lines(log_lines(engine.server.log))
            measured = asyncio.run(measure_engine(engine, trial.limit_bytes))
            return {**told, "ledger": ledger, **measured}
    except UllageError as error:
        return {**told, "error": str(error)}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {files: of_state([run for run in runs if run["files"] == files]) for files in FILES}


def of_state(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def values(name: str) -> Any:
        return dataclasses.asdict(spread([run.get(name) for run in runs]))

    return {
        "runs": len(runs),
        "failed": sum(run["error"] is not None for run in runs),
        "kv_share": values("kv_share"),
        "kv_share_with_peak_kept": values("kv_share_with_peak_kept"),
        "kv_tokens": values("kv_tokens"),
    }


def reached(told: dict[str, Any]) -> bool:
    """The goal, for the states that were measured."""
    return all(state_reached(state) for state in told.values() if state["runs"])


def state_reached(state: dict[str, Any]) -> bool:
    median = state["kv_share"]["median"]
    return median is not None and median >= SHARE and not state["failed"]


def table(runs: Sequence[dict[str, Any]]) -> str:
    header = [
        "files",
        "KV / left",
        "with the peak kept",
        "KV",
        "left",
        "not KV, unreclaimable",
        "hot file pages",
        "hot by the ledger",
        "error",
    ]
    return f"{markdown_table(header, [row(run) for run in runs])}\n\n{medians(summary(runs))}"


def medians(told: dict[str, Any]) -> str:
    return "\n".join(in_words(files, state) for files, state in told.items() if state["runs"])


def in_words(files: str, state: dict[str, Any]) -> str:
    return (
        f"- {files}: KV / left {state['kv_share']['median']}, with the peak kept "
        f"{state['kv_share_with_peak_kept']['median']} (medians of {state['runs']})"
    )


def row(run: dict[str, Any]) -> list[object]:
    sizes = ("kv_bytes", "left_bytes", "non_kv_unreclaimable_bytes", "hot_bytes")
    return [
        run["files"],
        run.get("kv_share"),
        run.get("kv_share_with_peak_kept"),
        *(size(run.get(name)) for name in sizes),
        size(size_bytes_of(run.get("ledger", []), "file pages, in use", "file pages, mapped")),
        run["error"] or "",
    ]


def size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else gib(size_bytes, digits=3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=5, help="cold, and as many warm")
    parser.add_argument("--files", choices=FILES, help="one state alone")
    parser.add_argument("--memory", type=parse_size, default="4GiB", help="the limit, such as 4GiB")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible(), phases() as phase:
        runs = measure(options, phase)
    print(table(runs))
    sys.exit(0 if reached(summary(runs)) else 1)


def measure(options: argparse.Namespace, phase: Phase) -> list[dict[str, Any]]:
    logs = logs_below(options.output, "kv_share")
    trial, where = demo_trial(options.memory, "cold", logs)
    states = FILES if options.files is None else (options.files,)
    record = Record(
        name="kv_share",
        directory=options.output,
        question=__doc__.splitlines()[0],
        goal=GOAL,
        command=command_line(),
        where=where,
        settings={"limit_bytes": trial.limit_bytes, "flags": list(trial.settings.flags())},
    )
    runs: list[dict[str, Any]] = []
    for number in range(1, options.starts + 1):
        for files in states:

            def told(
                text: str, title: str = f"start {number} of {options.starts}, {files}"
            ) -> None:
                phase(f"{title}: {text}")

            runs.append(run_once(trial, files, logs / f"{files}-{number}", told))
            record.write(runs, summary(runs), table(runs))
    return runs


if __name__ == "__main__":
    main()

"""What share of the memory that is truly left becomes KV cache, and does the rest still suffice?

    left = limit - unreclaimable memory without the KV cache - hot mapped file pages
    share = KV cache / left

Read from outside, when the server says that it is ready (/health) and before its first request.
Unreclaimable is what the group's counters call anonymous, shmem, kernel and locked file pages.  Hot
is what the engine's processes touch of their mapped files during one short request, by the plugin's
own rule: right after the counters were read, the references are reset (/proc/PID/clear_refs), the
request runs, and what is referenced then (/proc/PID/smaps) must stay in memory, whichever group is
charged for it.  The plain counters are in the document, so that the sum can be done again.

A second figure, which is no goal: share with the peak kept = KV cache / (left - transient peak of
the largest step), the peak as the plugin's own ledger in the log has it.  Large blocks are mapped
one by one: the memory of a step's peak goes back to the kernel after the step, so that `left` has
it, and the next such step needs it again.  No KV cache can ever have it.

Whether too little was left shows in file pages that are read again (workingset_refault_file of the
group) during a fixed load, after the same load once uncounted: against a container twice as large,
where ullage holds the additional room back (ULLAGE_MARGIN), so that the KV cache is as large as in
the tight one.  ullage on both sides, because stock makes its cache of small pages and warms up
otherwise: only the room differs.  An explicit size would be stock's, too: ullage leaves it alone.

    python benchmarks/kv_share.py               five starts each, cold and warm (about two hours)
    python benchmarks/kv_share.py --starts 1    a first try
    python benchmarks/kv_share.py --share-only  the shares alone, without the loads (15 minutes), to
                                                results/kv_share_alone.json
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
from harness.load import TOKENS, fixed_load
from harness.record import RESULTS, Record, command_line, logs_below, markdown_table, spread
from harness.serving import Engine, demo_trial, log_lines, serving, with_more_room, with_requests
from harness.shares import share, with_peak_kept
from ullage.cli.progress import phases
from ullage.compare.files import FileState
from ullage.compare.interrupt import interruptible
from ullage.compare.starts import ULLAGE, Phase, Trial
from ullage.devices import host
from ullage.errors import EngineFailed, UllageError
from ullage.units import gib, parse_size

GOAL: Final = (
    "KV / left >= 0.93 in the median of 5 starts, cold and warm; no more file pages read again "
    "than in a container twice as large."
)
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


async def measure_engine(
    engine: Engine, trial: Trial, phase: Phase, *, with_share: bool, with_load: bool
) -> dict[str, Any]:
    assert trial.limit_bytes is not None  # noqa: S101 - demo_trial sets one
    async with Client(engine.server.port) as client:
        told = await at_ready(engine, client, trial.limit_bytes) if with_share else {}
        loaded = await under_load(engine, client, trial, phase) if with_load else {}
    return {
        **told,
        "kv_tokens": engine.kv_tokens,
        "kv_bytes": engine.kv_bytes,
        **loaded,
        "oom_kills": engine.group.oom_kills(),
    }


async def under_load(engine: Engine, client: Client, trial: Trial, phase: Phase) -> dict[str, Any]:
    phase("load, uncounted")
    await fixed_load(client, trial.load, seed=1)
    phase("load, counted")
    before = refaults(engine)
    loaded = await fixed_load(client, trial.load, seed=2)
    after = refaults(engine)
    return {
        "refaulted_pages_in_start_and_first_load": before,
        "refaulted_pages": None if before is None or after is None else after - before,
        **dataclasses.asdict(loaded),
    }


def refaults(engine: Engine) -> int | None:
    return host.read_group(engine.group.path).parts.file_refaults


def run_once(
    trial: Trial, files: FileState, directory: Path, phase: Phase, *, share_only: bool
) -> dict[str, Any]:
    """One start in the tight container, and one in a container twice as large, which only the
    loads are for."""
    trial = dataclasses.replace(trial, files=files)
    wide, held_back = with_more_room(trial, ULLAGE)
    told: dict[str, Any] = {"files": files, "error": None}
    try:
        with serving(trial, ULLAGE, directory / "tight", phase) as engine:
            told["ledger"] = ledger_lines(log_lines(engine.server.log))
            told["tight"] = asyncio.run(
                measure_engine(engine, trial, phase, with_share=True, with_load=not share_only)
            )
        if share_only:
            return told
        with serving(wide, held_back, directory / "wide", phase) as engine:
            told["wide"] = asyncio.run(
                measure_engine(engine, wide, phase, with_share=False, with_load=True)
            )
    except UllageError as error:
        told["error"] = str(error)
    return told


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {files: of_state([run for run in runs if run["files"] == files]) for files in FILES}


def of_state(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def values(side: str, name: str) -> Any:
        return dataclasses.asdict(spread([run.get(side, {}).get(name) for run in runs]))

    return {
        "runs": len(runs),
        "failed": sum(run["error"] is not None for run in runs),
        "kv_share": values("tight", "kv_share"),
        "kv_share_with_peak_kept": values("tight", "kv_share_with_peak_kept"),
        "refaulted_pages": values("tight", "refaulted_pages"),
        "refaulted_pages_twice_as_large": values("wide", "refaulted_pages"),
    }


def reached(told: dict[str, Any], *, share_only: bool = False) -> bool:
    """The goal, for the states that were measured; of the shares alone, that part of it."""
    return all(state_reached(state, share_only) for state in told.values() if state["runs"])


def state_reached(state: dict[str, Any], share_only: bool) -> bool:
    shares, tight = state["kv_share"]["median"], state["refaulted_pages"]["median"]
    wide = state["refaulted_pages_twice_as_large"]["median"]
    if shares is None or shares < SHARE or state["failed"]:
        return False
    return share_only or (tight is not None and wide is not None and tight <= wide)


def table(runs: Sequence[dict[str, Any]]) -> str:
    header = [
        "files",
        "KV / left",
        "with the peak kept",
        "KV",
        "left",
        "not KV, unreclaimable",
        "hot file pages",
    ]
    header += ["hot by the ledger", "read again", "twice as large: KV", "read again", "error"]
    return f"{markdown_table(header, [row(run) for run in runs])}\n\n{medians(summary(runs))}"


def medians(told: dict[str, Any]) -> str:
    return "\n".join(in_words(files, state) for files, state in told.items() if state["runs"])


def in_words(files: str, state: dict[str, Any]) -> str:
    tight, wide = state["refaulted_pages"], state["refaulted_pages_twice_as_large"]
    pages = f"; pages read again {tight['median']} against {wide['median']}"
    return (
        f"- {files}: KV / left {state['kv_share']['median']}, with the peak kept "
        f"{state['kv_share_with_peak_kept']['median']}{pages if tight['count'] else ''} "
        f"(medians of {state['runs']})"
    )


def row(run: dict[str, Any]) -> list[object]:
    tight, wide = run.get("tight", {}), run.get("wide", {})
    sizes = ("kv_bytes", "left_bytes", "non_kv_unreclaimable_bytes", "hot_bytes")
    return [
        run["files"],
        tight.get("kv_share"),
        tight.get("kv_share_with_peak_kept"),
        *(size(tight.get(name)) for name in sizes),
        size(size_bytes_of(run.get("ledger", []), "file pages, in use", "file pages, mapped")),
        tight.get("refaulted_pages"),
        size(wide.get("kv_bytes")),
        wide.get("refaulted_pages"),
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
    parser.add_argument("--requests", type=int, help="of each load; as many as run at once")
    parser.add_argument(
        "--share-only", action="store_true", help="read the shares when ready, and load nothing"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible(), phases() as phase:
        runs = measure(options, phase)
    print(table(runs))
    sys.exit(0 if reached(summary(runs), share_only=options.share_only) else 1)


def measure(options: argparse.Namespace, phase: Phase) -> list[dict[str, Any]]:
    logs = logs_below(options.output, "kv_share")
    trial, where = demo_trial(options.memory, "cold", logs)
    trial = with_requests(trial, options.requests)
    states = FILES if options.files is None else (options.files,)
    record = Record(
        name="kv_share_alone" if options.share_only else "kv_share",
        directory=options.output,
        question=__doc__.splitlines()[0],
        goal=GOAL,
        command=command_line(),
        where=where,
        settings={
            "limit_bytes": trial.limit_bytes,
            "flags": list(trial.settings.flags()),
            "load": None if options.share_only else dataclasses.asdict(trial.load),
        },
    )
    runs: list[dict[str, Any]] = []
    for number in range(1, options.starts + 1):
        for files in states:

            def told(
                text: str, title: str = f"start {number} of {options.starts}, {files}"
            ) -> None:
                phase(f"{title}: {text}")

            directory = logs / f"{files}-{number}"
            run = run_once(trial, files, directory, told, share_only=options.share_only)
            runs.append(run)
            record.write(runs, summary(runs), table(runs))
    return runs


if __name__ == "__main__":
    main()

"""What does an engine that is killed while it starts leave behind, and does the next one mind?

A small model in a memory cgroup.  Each start is ended by SIGKILL to every process of its group, at
a moment between 0 and a tenth more than a whole start takes: the span is cut into as many parts as
there are starts, each start gets a random moment of one part, in a random order (seeded).  Then it
is asked what is left: processes, groups, mounts, System V segments, and files in /dev/shm, TMPDIR,
XDG_RUNTIME_DIR (leases) and XDG_STATE_HOME (receipts), which are the same folders for all starts of
the series, and nobody else's.  The first two starts, every 20th and the last are let through: they
must become ready with as large a KV cache as the first, and answer, beside all that was left.

Left over is what the next start does not clean or ignore: a process, a group, a mount, a segment;
and whatever keeps a start from becoming ready.  Files that stock leaves as well are named apart.

    python benchmarks/cut_starts.py               200 starts (under two hours); a series that was
                                                  stopped is carried on at the commit that it was
                                                  stopped at, and begun anew at another
    python benchmarks/cut_starts.py --starts 3 --afresh   a first try
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from harness.client import Answer, Ask, Client
from harness.leftovers import by_owner, size_bytes
from harness.load import TOKENS
from harness.record import (
    RESULTS,
    Record,
    both,
    command_line,
    commit,
    logs_below,
    markdown_table,
)
from harness.series import LIMIT_BYTES, Series, kill_all, series_below, started, wait
from harness.serving import log_lines
from harness.steps import BEGINNING, STEPS, reached
from ullage.cli.progress import phases
from ullage.compare.engine_log import kv_tokens, plugin_acted
from ullage.compare.interrupt import interruptible
from ullage.compare.run import check_place
from ullage.compare.starts import NOT_LOADED, Phase
from ullage.errors import EngineFailed, UllageError

GOAL: Final = "Nothing left that the next start does not clean or ignore, in 200 starts."
PROOF_EVERY: Final = 20
BEYOND_READY: Final = 1.1
CALIBRATED: Final = 2  # starts that are let through before the first cut
LEAST_KV: Final = 0.8  # of the first proof's cache; equal starts differ by the heap's 0.1 GiB
SEED: Final = 20_260_101


def moments(count: int, ready_s: float, seed: int) -> list[float]:
    """One random moment in each of `count` equal parts of the span, in a random order.  Pure."""
    chance = random.Random(seed)  # noqa: S311 - the same moments for the same seed
    part_s = ready_s * BEYOND_READY / count
    found = [(number + chance.random()) * part_s for number in range(count)]
    chance.shuffle(found)
    return [round(each, 3) for each in found]


def cut(series: Series, number: int, at_s: float) -> dict[str, Any]:
    """One start that is killed `at_s` after its beginning, and what it left."""
    before = series.look()
    with started(series, f"cut-{number}") as (group, server):
        began_s = time.monotonic()
        ended = wait(server, at_s)
        cut_s = round(time.monotonic() - began_s, 3)
        survivors = kill_all(group, server)
        step = reached(log_lines(server.log))
        error = server.error() if ended else None
    new = series.look().beyond(before)
    return {
        "kind": "cut",
        "number": number,
        "at_s": at_s,
        "cut_s": cut_s,
        "reached": step,
        "error": error,
        "processes": survivors,
        "groups": sorted(new.groups),
        "mounts": sorted(new.mounts),
        "segments": sorted(new.segments),
        "files": by_owner(new.files),
        "shm_bytes": size_bytes(series.places.shm),
    }


def proof(series: Series, number: int) -> dict[str, Any]:
    """One start that is let through, beside what the others left."""
    before = series.look()
    told: dict[str, Any] = {"kind": "proof", "number": number, "error": None}
    try:
        with started(series, f"proof-{number}") as (group, server):
            told["ready_s"] = round(server.wait_ready(), 2)
            lines = log_lines(server.log)
            told["kv_tokens"] = kv_tokens(lines)
            told["error"] = None if plugin_acted(lines) else NOT_LOADED
            answer = asyncio.run(one_request(server.port))
            told["error"] = told["error"] or answer.reason
            told["oom_kills"] = group.oom_kills()
    except UllageError as error:
        told["error"] = str(error)
    after = series.look()
    told["cleaned"] = by_owner(before.files - after.files)
    told["still_there"] = by_owner(after.files & before.files)
    return told


async def one_request(port: int) -> Answer:
    async with Client(port) as client:
        return await client.ask(Ask(kind="proof", prompt=tuple(TOKENS[:64]), output_tokens=8))


def left_over(run: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    """What no next start cleans or ignores, in words.  Pure."""
    if run["kind"] == "cut":
        names = ("processes", "groups", "mounts", "segments")
        found = [f"{name}: {', '.join(run[name])}" for name in names if run[name]]
        return found if run["error"] is None else [*found, f"ended by itself: {run['error']}"]
    if run["error"] is not None:
        return [f"the next start fails: {run['error']}"]
    if run["kv_tokens"] < LEAST_KV * first["kv_tokens"]:
        return [f"the next start has {run['kv_tokens']} KV tokens, not {first['kv_tokens']}"]
    return []


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cuts = [run for run in runs if run["kind"] == "cut"]
    proofs = [run for run in runs if run["kind"] == "proof"]
    files = Counter(
        f"{owner}: {file.partition('/')[0]}"
        for run in cuts
        for owner in run["files"]
        for file in run["files"][owner]
    )
    return {
        "cut": len(cuts),
        "let_through": len(proofs),
        "left_over": [text for run in runs for text in left_over(run, proofs[0])],
        "cut_after": dict(Counter(run["reached"] for run in cuts)),
        "files_left": dict(files),
    }


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    told = summary(runs)
    rows = [[name, told["cut_after"].get(name, 0)] for name in (BEGINNING, *(n for n, _ in STEPS))]
    files = [[name, count] for name, count in sorted(told["files_left"].items())]
    proofs = [
        [run["number"], run.get("ready_s"), run.get("kv_tokens"), run["error"] or "none"]
        for run in runs
        if run["kind"] == "proof"
    ]
    return "\n\n".join(
        (
            f"{told['cut']} starts cut, {told['let_through']} let through, "
            f"{len(told['left_over'])} left over.",
            *told["left_over"],
            markdown_table(["cut after", "starts"], rows),
            markdown_table(["let through after", "ready, s", "KV tokens", "error"], proofs),
            markdown_table(["files left, all ignored or cleaned", "files"], files),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--afresh", action="store_true", help="do not carry on, begin anew")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible(), phases() as phase:
        runs = measure(options, phase)
    print(table(runs))
    sys.exit(1 if summary(runs)["left_over"] else 0)


def measure(options: argparse.Namespace, phase: Phase) -> list[Mapping[str, Any]]:
    where = check_place(LIMIT_BYTES)
    with series_below(logs_below(options.output, "cut_starts")) as series:
        settings = {
            "limit_bytes": LIMIT_BYTES,
            "flags": list(series.settings.flags()),
            "starts": options.starts,
            "seed": options.seed,
        }
        record = Record(
            name="cut_starts",
            directory=options.output,
            question=__doc__.splitlines()[0],
            goal=GOAL,
            command=command_line(),
            where=where,
            settings=settings,
        )
        runs = [] if options.afresh else earlier(record, phase)
        began_at = commit()
        for run in rest(series, runs, options, phase):
            ended_at = commit()
            runs.append({**run, "commit": both(began_at, ended_at)})
            began_at = ended_at
            record.write(runs, summary(runs), table(runs))
    return runs


def earlier(record: Record, phase: Phase) -> list[Mapping[str, Any]]:
    """The runs that are carried on, and a word about those that are not."""
    runs, others = record.earlier()
    if runs:
        phase(f"carried on, runs of {record.begun_at}: {len(runs)}")
    if others:
        phase(f"left out, runs of other commits, settings or changed files: {others}")
    return runs


def rest(
    series: Series, runs: Sequence[Mapping[str, Any]], options: argparse.Namespace, phase: Phase
) -> Iterator[Mapping[str, Any]]:
    """Each call begins with a start that is let through and fills the caches; a new series with a
    second one, which tells how long a start takes with them."""
    done = {run["number"] for run in runs if run["kind"] == "cut"}
    told = [run for run in runs if run["kind"] == "proof"][:CALIBRATED]
    for _ in range(max(1, CALIBRATED - len(told))):
        phase(f"after {len(done)} starts: one is let through")
        told.append(proof(series, len(done)))
        yield told[-1]
    ready_s = told[CALIBRATED - 1].get("ready_s")
    if ready_s is None:
        raise EngineFailed(f"no start becomes ready: {told[CALIBRATED - 1]['error']}")
    for number, at_s in enumerate(moments(options.starts, ready_s, options.seed), start=1):
        if number in done:
            continue
        phase(f"start {number} of {options.starts}: cut after {at_s:.1f} s")
        yield cut(series, number, at_s)
        if number % PROOF_EVERY == 0 or number == options.starts:
            phase(f"after {number} starts: one is let through")
            yield proof(series, number)


if __name__ == "__main__":
    main()

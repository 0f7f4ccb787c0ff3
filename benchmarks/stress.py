"""Does an engine with ullage live through adversarial load with its KV cache full?

The demo model in a memory cgroup of 4 GiB, no memory flag.  Requests far more than the pool holds,
all at once: longest prompts, longest answers, prompts of any length, eight samples each, 20 log
probabilities, penalties, all of that together, clients that close in the middle of a stream or
while they wait, and requests that are to be refused.  Each one that ends is followed by another;
every 300 s all clients close at once, and as many new ones come.  In the end the engine must answer
one more request.

    python benchmarks/stress.py                        three runs of ten minutes
    python benchmarks/stress.py --minutes 1 --runs 1   a first try
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.client import Answer, Ask, Client, load_for
from harness.load import TOKENS
from harness.pool import PoolState, watch
from harness.record import RESULTS, Record, command_line, logs_below, markdown_table, spread
from harness.serving import Engine, demo_trial, serving
from ullage.cli.progress import phases
from ullage.compare.interrupt import interruptible
from ullage.compare.starts import ULLAGE, Phase, Trial
from ullage.errors import UllageError
from ullage.units import gib, parse_size

GOAL: Final = "0 OOM kills, 0 engine deaths in every run."
# A full pool takes about a minute of prefills on 2 cores: most of a round runs with it.
ROUND_S: Final = 300.0
IN_FLIGHT_PER_SEAT: Final = 2  # of --max-num-seqs: the queue is as long as all that may run
PENALTIES: Final = {
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "repetition_penalty": 1.3,
    "temperature": 1.0,
}
FULL: Final = 0.9  # of the pool's blocks: what one more long request may wait for is no longer free


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Shares of the longest sequence; the extra keys of the request; how the client behaves."""

    name: str
    prompt: float
    output: float
    extra: tuple[tuple[str, Any], ...] = ()
    closes_in_stream: bool = False
    closes_within_s: float | None = None
    refusable: bool = False
    any_length: bool = False  # of the prompt: up to its share


KINDS: Final = (
    Kind(name="longest prompt", prompt=0.99, output=0.01),
    Kind(name="longest answer", prompt=0.01, output=0.99),
    # Steps of ever other numbers of tokens, each of which needs kernels of its own.
    Kind(name="any length", prompt=0.5, output=0.01, any_length=True),
    Kind(name="samples", prompt=0.25, output=0.125, extra=(("n", 8), ("temperature", 1.0))),
    Kind(name="log probabilities", prompt=0.125, output=0.125, extra=(("logprobs", 20),)),
    Kind(name="penalties", prompt=0.75, output=0.125, extra=tuple(PENALTIES.items())),
    Kind(
        name="all together",
        prompt=0.85,
        output=0.125,
        extra=(("n", 4), ("logprobs", 20), *PENALTIES.items()),
    ),
    Kind(name="closed in the stream", prompt=0.5, output=0.5, closes_in_stream=True),
    Kind(name="closed while waiting", prompt=0.99, output=0.01, closes_within_s=20.0),
    Kind(
        name="to be refused",
        prompt=0.99,
        output=0.01,
        extra=(("prompt_logprobs", 5),),
        refusable=True,
    ),
)


def asks(max_model_len: int, chance: random.Random) -> Iterator[Ask]:
    """Every kind once, in an order drawn anew, over and over; no two prompts have a beginning in
    common."""
    while True:
        for kind in chance.sample(KINDS, len(KINDS)):
            yield ask(kind, max_model_len, chance)


def ask(kind: Kind, max_model_len: int, chance: random.Random) -> Ask:
    prompt = max(1, int(kind.prompt * max_model_len))
    if kind.any_length:
        prompt = chance.randint(1, prompt)
    output = max(1, min(int(kind.output * max_model_len), max_model_len - prompt))
    within_s = kind.closes_within_s
    return Ask(
        kind=kind.name,
        prompt=tuple(chance.choices(TOKENS, k=prompt)),
        output_tokens=output,
        extra=dict(kind.extra),
        close_after_pieces=chance.randint(1, 20) if kind.closes_in_stream else None,
        close_after_s=None if within_s is None else chance.uniform(0.2, within_s),
        refusable=kind.refusable,
    )


async def attack(
    engine: Engine, trial: Trial, seconds: float, seed: int, phase: Phase
) -> tuple[list[Answer], list[PoolState], Answer]:
    """What became of each request, the pool second by second, and one plain request afterwards."""
    settings = trial.settings
    chance = random.Random(seed)  # noqa: S311 - the same requests in each run of this number
    answers: list[Answer] = []
    states: list[PoolState] = []
    async with Client(engine.server.port) as client:
        watching = asyncio.create_task(watch(client, states))
        ends_s = time.monotonic() + seconds
        for number in itertools.count(1):
            left_s = ends_s - time.monotonic()
            if left_s <= 0 or not engine.alive:
                break
            phase(f"round {number}, {left_s:.0f} s to go, {len(answers)} requests so far")
            answers += await load_for(
                client,
                asks(settings.max_model_len, chance),
                in_flight=IN_FLIGHT_PER_SEAT * settings.max_num_seqs,
                seconds=min(ROUND_S, left_s),
                alive=lambda: engine.alive,
            )
        watching.cancel()
        phase("one more request")
        plain = Ask(kind="one more", prompt=tuple(TOKENS[:64]), output_tokens=8)
        return answers, states, await client.ask(plain)


def run_once(
    trial: Trial, seconds: float, number: int, directory: Path, phase: Phase
) -> dict[str, Any]:
    try:
        with serving(trial, ULLAGE, directory, phase) as engine:
            members = set(engine.group.pids())
            told = asyncio.run(attack(engine, trial, seconds, number, phase))
            lost = members - set(engine.group.pids())
            died = not engine.alive
            return {
                "number": number,
                "error": engine.server.error() if died else None,
                "ready_s": engine.ready_s,
                "kv_tokens": engine.kv_tokens,
                "kv_bytes": engine.kv_bytes,
                "engine_deaths": int(died),
                "lost_processes": len(lost),
                **dataclasses.asdict(engine.sampler.counters()),
                **outcome(*told),
            }
    except UllageError as error:
        # It did not start: nothing was put to the test.
        return {"number": number, "error": str(error), "engine_deaths": 0, "oom_kills": None}


def outcome(answers: Sequence[Answer], states: Sequence[PoolState], last: Answer) -> dict[str, Any]:
    """Counts by outcome, kind and reason, and how full the pool was.  Pure."""
    usage = [state.usage for state in states if state.usage is not None]
    waiting = [state.waiting for state in states if state.waiting is not None]
    preempted = [state.preemptions for state in states if state.preemptions is not None]
    kinds = {
        kind: Counter(answer.outcome for answer in answers if answer.kind == kind)
        for kind in sorted({answer.kind for answer in answers})
    }
    return {
        "requests": dict(Counter(answer.outcome for answer in answers)),
        "by_kind": {kind: dict(counts) for kind, counts in kinds.items()},
        "reasons": dict(Counter(a.reason for a in answers if a.outcome == "failed")),
        "pool_usage": dataclasses.asdict(spread(usage)),
        "pool_full_share": sum(each >= FULL for each in usage) / len(usage) if usage else None,
        "waiting": dataclasses.asdict(spread(waiting)),
        "preemptions": max(preempted, default=None),
        "answered_afterwards": last.outcome == "done",
        "afterwards": last.reason,
    }


def survived(run: dict[str, Any]) -> bool:
    """Nothing killed, nothing dead, and it still answers."""
    quiet = run["oom_kills"] == 0 and run["engine_deaths"] == 0 and run.get("lost_processes") == 0
    return quiet and bool(run.get("answered_afterwards"))


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "runs": len(runs),
        "survived": sum(map(survived, runs)),
        "oom_kills": sum(run["oom_kills"] or 0 for run in runs),
        "engine_deaths": sum(run["engine_deaths"] for run in runs),
        "peak_unreclaimable_bytes": dataclasses.asdict(
            spread([run.get("peak_unreclaimable_bytes") for run in runs])
        ),
    }


def table(runs: Sequence[dict[str, Any]]) -> str:
    header = ["run", "survived", "OOM kills", "deaths", "KV tokens", "done", "aborted", "cut off"]
    header += ["refused", "failed", "pool used, median", "time full", "waiting", "peak"]
    return markdown_table(header, [row(run) for run in runs])


def row(run: dict[str, Any]) -> list[object]:
    counts = run.get("requests", {})
    usage, waiting = run.get("pool_usage", {}), run.get("waiting", {})
    peak = run.get("peak_unreclaimable_bytes")
    return [
        run["number"],
        "yes" if survived(run) else f"no: {run['error'] or run.get('afterwards')}",
        run["oom_kills"],
        run["engine_deaths"],
        run.get("kv_tokens"),
        *(counts.get(name, 0) for name in ("done", "aborted", "cut", "refused", "failed")),
        percent(usage.get("median")),
        percent(run.get("pool_full_share")),
        waiting.get("median"),
        None if peak is None else gib(peak),
    ]


def percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of load in each run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory", type=parse_size, default="4GiB", help="the limit, such as 4GiB")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible(), phases() as phase:
        runs = measure(options, phase)
    print(table(runs))
    sys.exit(0 if all(map(survived, runs)) else 1)


def measure(options: argparse.Namespace, phase: Phase) -> list[dict[str, Any]]:
    logs = logs_below(options.output, "stress")
    trial, where = demo_trial(options.memory, "cold", logs)
    record = Record(
        name="stress",
        directory=options.output,
        question=__doc__.splitlines()[0],
        goal=GOAL,
        command=command_line(),
        where=where,
        settings={
            "limit_bytes": trial.limit_bytes,
            "flags": list(trial.settings.flags()),
            "in_flight": IN_FLIGHT_PER_SEAT * trial.settings.max_num_seqs,
            "seconds": options.minutes * 60,
            "round_s": ROUND_S,
            "kinds": [dataclasses.asdict(kind) for kind in KINDS],
        },
    )
    runs: list[dict[str, Any]] = []
    for number in range(1, options.runs + 1):

        def told(text: str, number: int = number) -> None:
            phase(f"run {number} of {options.runs}: {text}")

        runs.append(run_once(trial, options.minutes * 60, number, logs / f"run-{number}", told))
        record.write(runs, summary(runs), table(runs))
    return runs


if __name__ == "__main__":
    main()

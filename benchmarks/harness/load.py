"""The fixed load of the main job, as the same requests every time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from harness.client import Ask, Client, load_all
from harness.pool import PoolState, parse
from ullage.compare.load import Load

# Of the demo model's vocabulary; the ones before may be special.
TOKENS: Final = range(300, 16_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What came of it.  `preemptions` None: the server did not say."""

    elapsed_s: float
    output_tok_s: float
    failed: int
    preemptions: float | None


def fixed_asks(load: Load, seed: int) -> list[Ask]:
    """The requests of `load`; no two have a beginning in common, nor with those of another seed."""
    chance = random.Random(seed)  # noqa: S311 - the same requests each time
    return [
        Ask(
            kind="fixed",
            prompt=tuple(chance.choices(TOKENS, k=load.input_tokens)),
            output_tokens=load.output_tokens,
        )
        for _ in range(load.prompts)
    ]


async def fixed_load(client: Client, load: Load, seed: int) -> Loaded:
    """Apply `load`; the rate is that of all its output tokens over the whole time."""
    before = await _state(client)
    began_s = time.monotonic()
    answers = await load_all(client, fixed_asks(load, seed), in_flight=load.concurrency)
    elapsed_s = time.monotonic() - began_s
    done = sum(answer.outcome == "done" for answer in answers)
    return Loaded(
        elapsed_s=round(elapsed_s, 2),
        output_tok_s=round(done * load.output_tokens / elapsed_s, 2),
        failed=len(answers) - done,
        preemptions=_more(before, await _state(client), lambda state: state.preemptions),
    )


async def _state(client: Client) -> PoolState | None:
    text = await client.metrics()
    return None if text is None else parse(text)


def _more(
    before: PoolState | None, after: PoolState | None, of: Callable[[PoolState], float | None]
) -> float | None:
    first = None if before is None else of(before)
    last = None if after is None else of(after)
    return None if first is None or last is None else last - first

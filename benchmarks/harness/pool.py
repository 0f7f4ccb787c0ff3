"""How full the KV cache is and how long the queue, from the server's own metrics."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final

from harness.client import Client

INTERVAL_S: Final = 1.0
# vllm/v1/metrics/loggers.py, 0.32: gauges of one engine; prometheus adds _total to a counter.
_NAMES: Final = {
    "usage": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "preemptions": "vllm:num_preemptions_total",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolState:
    """`usage` is a share of all blocks, 0 to 1.  None: the server did not say."""

    usage: float | None
    running: float | None
    waiting: float | None
    preemptions: float | None


def parse(text: str) -> PoolState:
    return PoolState(**{field: _value(text, name) for field, name in _NAMES.items()})


def _value(text: str, name: str) -> float | None:
    """The sum over all labels of `name`."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found)) if found else None


async def watch(client: Client, into: list[PoolState]) -> None:
    """Ask every second until cancelled; moments without an answer are left out."""
    while True:
        text = await client.metrics()
        if text is not None:
            into.append(parse(text))
        await asyncio.sleep(INTERVAL_S)

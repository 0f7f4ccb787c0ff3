"""How far a start has come, from the engine's log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

BEGINNING: Final = "before the first line"
# In the order of a start; vLLM 0.32 with the CPU worker, and ullage's own lines.
STEPS: Final = (
    ("front end", re.compile(r"non-default args: ")),
    ("engine core", re.compile(r"Initializing a V1 LLM engine")),
    ("loading weights", re.compile(r"Starting to load model")),
    ("weights loaded", re.compile(r"Loading weights took")),
    ("warmed up", re.compile(r"ullage warm-up: ")),
    ("committing", re.compile(r"ullage commits \d+ blocks")),
    ("committed", re.compile(r"ullage committed \d+ blocks")),
    ("engine made", re.compile(r"init engine \(profile, create kv cache, warmup model\) took")),
    ("ready", re.compile(r"Application startup complete")),
)


def reached(lines: Iterable[str]) -> str:
    """The last step that the log tells of."""
    last = BEGINNING
    for line in lines:
        last = next((name for name, pattern in STEPS if pattern.search(line)), last)
    return last

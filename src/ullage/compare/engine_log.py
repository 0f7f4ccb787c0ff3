"""What an engine's log says: its KV cache, and why it did not start."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ullage.units import GIB

_TOKENS: Final = re.compile(r"KV cache size: ([\d,]+) tokens")
# vllm_plugin/cpu_worker.py, once the cache is committed.
_COMMITTED: Final = re.compile(r"ullage committed \d+ blocks")
_ERROR: Final = re.compile(r"\b((?:[A-Z]\w*)?(?:Error|Exception): .+)")
# Ours are named for what is the matter, and Python's traceback names their module.
_OURS: Final = re.compile(r"\bullage\.errors\.(\w+: .+)")
# What the processes above the failing one say of it: true, and no reason.
_ECHOES: Final = (
    "Engine core initialization failed",
    "Engine core proc",
    "WorkerProc initialization failed",
    "WorkerProc failed",
    "EngineDeadError",
)
# vLLM 0.32, v1/worker/cpu_worker.py: "Available memory on node 0 (0.02/4.0 GiB) on startup ..." and
# "... on kv cache allocation is less than requested memory for kv (1.2/2.7 GiB)".
_AVAILABLE: Final = re.compile(r"Available memory on node \d+ \((-?[\d.]+)/[\d.]+ GiB\)")
_REQUESTED_FOR_KV: Final = re.compile(r"requested memory for kv \((-?[\d.]+)")


def kv_tokens(lines: Iterable[str]) -> int | None:
    """Tokens of the KV cache, from the last line that names them; None without one."""
    found = _found(_TOKENS, lines)
    return int(found[-1].replace(",", "")) if found else None


def plugin_acted(lines: Iterable[str]) -> bool:
    """Does the log say that ullage's plugin made the KV cache?"""
    return any(_COMMITTED.search(line) for line in lines)


def error_line(lines: Iterable[str]) -> str | None:
    """The last error of ullage's; else the last one that is not the echo of another one; else the
    last echo; else None.  In full."""
    lines = list(lines)
    ours = _found(_OURS, lines)
    if ours:
        return ours[-1]
    errors = _found(_ERROR, lines)
    causes = [error for error in errors if not any(echo in error for echo in _ECHOES)]
    return next(reversed(causes or errors), None)


def _found(pattern: re.Pattern[str], lines: Iterable[str]) -> list[str]:
    """What the pattern's group holds, line by line."""
    return [match[1].strip() for line in lines if (match := pattern.search(line))]


def available_bytes(error: str) -> int | None:
    """The available memory that a refusal names, rounded by the log to 0.01 GiB; None without."""
    return _gib_in(_AVAILABLE.search(error))


def requested_for_kv_bytes(error: str) -> int | None:
    """The KV memory that a refused start had asked for; negative where weights took all of it."""
    return _gib_in(_REQUESTED_FOR_KV.search(error))


def _gib_in(match: re.Match[str] | None) -> int | None:
    return int(float(match[1]) * GIB) if match else None

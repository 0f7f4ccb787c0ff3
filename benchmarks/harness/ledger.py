"""The ledger that the plugin writes into the engine's log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ullage.units import GIB

_BEGINS: Final = re.compile(r"ullage: \d+ KV cache blocks fit\.")
_LINE: Final = re.compile(r"(-?[\d.]+) GiB  (.+?)(?:  +(.+))?$")
_LAST: Final = "total"


def ledger_lines(lines: Iterable[str]) -> list[str]:
    """The lines of the last ledger, without what the log puts before them; empty without one."""
    found: list[str] = []
    inside = False
    for line in lines:
        if _BEGINS.search(line):
            found, inside = [], True
        elif inside and (match := _LINE.search(line.rstrip())):
            found.append(match[0])
            inside = match[2].strip() != _LAST
    return found


def size_bytes_of(lines: Sequence[str], *beginnings: str) -> int | None:
    """The sum of the lines whose name begins so, as exact as the log has it; None without one."""
    matches = [match for line in lines if (match := _LINE.search(line))]
    sizes = [float(match[1]) for match in matches if match[2].startswith(beginnings)]
    return int(sum(sizes) * GIB) if sizes else None

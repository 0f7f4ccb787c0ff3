"""Bytes are ints; this module turns them into text and back, and aligns them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

_SCALE: Final = {
    "B": 1,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]+)")


def ceil_div(dividend: int, divisor: int) -> int:
    """Quotient rounded up.  `divisor` is positive."""
    return -(-dividend // divisor)


def align_up(size_bytes: int, alignment_bytes: int) -> int:
    """The smallest multiple of `alignment_bytes` that is not below `size_bytes`."""
    return ceil_div(size_bytes, alignment_bytes) * alignment_bytes


def align_down(size_bytes: int, alignment_bytes: int) -> int:
    """The largest multiple of `alignment_bytes` that is not above `size_bytes`."""
    return size_bytes // alignment_bytes * alignment_bytes


def parse_size(text: str) -> int:
    """Bytes in `text`, such as "4GiB" or "1.5 GiB".

    A bare number is refused: "4" has been read as bytes by one tool and as GiB by the next.
    Raises ValueError, whose message names the text and what would work.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        hint = f"{text.strip()}GiB" if re.fullmatch(r"\d+(\.\d+)?", text.strip()) else "4GiB"
        raise ValueError(f"'{text}' is not a size with a unit. Write it like {hint}.")
    unit = match["unit"]
    if unit not in _SCALE:
        raise ValueError(f"'{unit}' in '{text}' is not a unit. Use B, KiB, MiB, GiB or TiB.")
    return int(Decimal(match["number"]) * _SCALE[unit])


def gib(size_bytes: int, *, digits: int = 2) -> str:
    """`size_bytes` as text in GiB, the only unit that text uses: "1.50 GiB"."""
    return f"{size_bytes / GIB:.{digits}f} GiB"


def gib_at_least(size_bytes: int) -> str:
    """As `gib`, rounded up: for advice that must be enough."""
    return f"{ceil_div(size_bytes * 100, GIB) / 100:.2f} GiB"

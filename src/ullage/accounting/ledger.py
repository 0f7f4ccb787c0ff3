"""Lines that, with a residual, add up to a total to the byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from ullage.units import gib

Provenance = Literal[
    "exact",  # a source's own count, as it stands
    "measured",  # seen by us, such as a peak
    "derived",  # computed from exact values
    "estimated",  # a rule that may err, on the safe side
    "unknown",  # something is there, and its size cannot be seen
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One named share of the total.  `size_bytes` is None where, and only where, it is unknown."""

    name: str
    size_bytes: int | None
    provenance: Provenance
    source: str

    def __post_init__(self) -> None:
        if (self.size_bytes is None) != (self.provenance == "unknown"):
            raise ValueError(f"Line '{self.name}': a size is None if and only if it is unknown.")
        if self.size_bytes is not None and self.size_bytes < 0:
            raise ValueError(
                f"Line '{self.name}' would be negative ({gib(self.size_bytes)}). "
                "Leave the difference to the residual."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    total_bytes: int
    lines: tuple[Line, ...] = ()

    def __post_init__(self) -> None:
        repeated = [name for name, n in Counter(line.name for line in self.lines).items() if n > 1]
        if repeated:
            raise ValueError(f"Ledger has two lines named '{repeated[0]}'.")

    @property
    def residual_bytes(self) -> int:
        """What no line explains; negative where lines overlap or sources lag behind each other.

        Lines of unknown size are part of it.
        """
        return self.total_bytes - sum(line.size_bytes or 0 for line in self.lines)

    def with_lines(self, *lines: Line) -> Ledger:
        """This ledger with each line in the place of the one of its name, or at the end."""
        new = {line.name: line for line in lines}
        if len(new) != len(lines):
            raise ValueError("Two of the new lines have the same name.")
        kept = tuple(new.pop(line.name, line) for line in self.lines)
        return Ledger(total_bytes=self.total_bytes, lines=(*kept, *new.values()))

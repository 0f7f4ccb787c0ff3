"""The primitives of virtual memory.  Read this file first.

Holds for all of them: addresses and sizes are ints, multiples of `granularity_bytes`, inside one
range that `reserve` returned.  A primitive either does what it says or raises `MemoryRefused` and
leaves the range as it was; only a refused `commit` may leave memory behind, for `decommit` to take
away.  None of them is thread-safe, and none undoes: `vmem.region` does both.

Callers ask what a platform can do (`Capabilities`), never which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    granularity_bytes: int  # the smallest piece that can be committed
    huge_page_bytes: int | None  # pages this large are used where a range allows it; None: never
    step_bytes: int  # a larger commit is done in steps, with a look at what is left before each
    overcommit_kills: bool  # exceeding a limit ends the process instead of failing the call


class VirtualMemory(Protocol):
    @property
    def capabilities(self) -> Capabilities: ...

    def reserve(self, size_bytes: int) -> int:
        """Take addresses, without memory behind them.  Returns the first."""

    def commit(self, address: int, size_bytes: int) -> None:
        """Put zeroed memory behind a range that has none.

        pre: nothing in the range is committed.
        """

    def decommit(self, address: int, size_bytes: int) -> None:
        """Take the memory away and keep the addresses.

        What is not committed stays so: the call may cover it.
        """

    def zero(self, address: int, size_bytes: int) -> None:
        """Overwrite with zeros.  Any alignment.

        pre: the range is committed.
        """

    def release(self, address: int, size_bytes: int) -> None:
        """Give memory and addresses back.

        pre: exactly a range that `reserve` returned.
        """

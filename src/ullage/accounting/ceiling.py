"""The most memory that could ever be taken, for refusals that must never be wrong.  Pure.

`settle` says what can surely be taken.  Here every file page counts as given back: a page that is
dirty now is clean in half a minute, and mapped code can be read again.  Kernel memory counts as
given back too, since version 1 does not say how much of it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ullage.devices.base import Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """At most `available_bytes` of `total_bytes` can be taken, says `source`.

    `share`: how much of what the memory limit is raised by can be taken too.
    """

    source: str
    total_bytes: int
    available_bytes: int
    share: Fraction = Fraction(1)


def ceiling(readings: Sequence[Reading]) -> Ceiling | None:
    """The lowest of all sources.  None where none says what it holds.

    limit 4.0, anonymous 1.0, shmem 0.1, whatever file pages there are: at most 2.9 can be taken.
    """
    known = [each for reading in readings if (each := _ceiling(reading)) is not None]
    return min(known, key=lambda each: each.available_bytes, default=None)


def _ceiling(reading: Reading) -> Ceiling | None:
    total, anon, shmem = reading.total_bytes, reading.parts.anon_bytes, reading.parts.shmem_bytes
    if total is None or anon is None or shmem is None:
        return None
    return Ceiling(
        source=reading.source,
        total_bytes=total,
        available_bytes=max(0, total - anon - shmem),
    )

"""One moment: all readings, settled, with a ledger of the source that binds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.accounting.exact import (
    FilePages,
    Settled,
    WorkingSet,
    file_pages,
    settle,
)
from ullage.accounting.ledger import Ledger, Line
from ullage.devices.base import ProcessReading, Reading

OTHERS: Final = "other processes"
# What `available` is made of, in this order.
UNUSED: Final = "unused"
AVAILABLE_LINES: Final = (UNUSED, "file pages, reclaimable")
# All that a bound on mappings or promises says of what it counts.
COUNTED: Final = ("mapped already", "promised to processes already")


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    taken_at_s: float  # Unix time
    readings: tuple[Reading, ...]
    processes: tuple[ProcessReading, ...]  # the engine's own
    total_bytes: int
    available_bytes: int
    binding_source: str
    # The own processes' mapped files, code above all, whichever group the kernel charged them to.
    own_file_bytes: int | None
    ledger: Ledger


def snapshot(
    *,
    readings: Sequence[Reading],
    processes: Sequence[ProcessReading],
    taken_at_s: float,
    working_set: WorkingSet | None = None,
    promised: Mapping[str, int] | None = None,
) -> Snapshot:
    """Settle `readings`, and lay out the binding source's total line by line.

    The kernel has no call that reads everything at once, so what moves between two reads shows in
    the residual.  Raises Unreadable as `settle` does.
    """
    settled = settle(readings, working_set=working_set, promised=promised)
    binding = next(each for each in readings if each.source == settled.binding_source)
    return Snapshot(
        taken_at_s=taken_at_s,
        readings=tuple(readings),
        processes=tuple(processes),
        total_bytes=settled.total_bytes,
        available_bytes=settled.available_bytes,
        binding_source=settled.binding_source,
        own_file_bytes=_own_file_bytes(processes),
        ledger=Ledger(
            total_bytes=settled.total_bytes,
            lines=tuple(_lines(settled, binding, processes, working_set)),
        ),
    )


def _own_file_bytes(processes: Sequence[ProcessReading]) -> int | None:
    sizes = [process.file_bytes for process in processes]
    known = [size for size in sizes if size is not None]
    return sum(known) if sizes and len(known) == len(sizes) else None


def _lines(
    settled: Settled,
    binding: Reading,
    processes: Sequence[ProcessReading],
    working_set: WorkingSet | None,
) -> Iterator[Line]:
    if binding.counts_memory:
        yield from _memory_lines(binding, processes, working_set)
    else:
        yield _counted_line(binding)
    yield from _margin_lines(settled, binding)
    yield from _available_lines(settled, binding)


def _counted_line(binding: Reading) -> Line:
    """pre: `binding` binds, so that it is known what is used of it."""
    return Line(
        name=COUNTED[binding.scope == "commit"],
        size_bytes=binding.used_bytes,
        provenance="exact",
        source=binding.source,
    )


def _memory_lines(
    binding: Reading, processes: Sequence[ProcessReading], working_set: WorkingSet | None
) -> Iterator[Line]:
    own = [_process_line(process) for process in processes]
    yield from own
    yield _others_line(binding, own)
    yield _kernel_line(binding)
    yield from _charged_lines(binding)
    if binding.parts.hugetlb_bytes:
        yield Line(
            name="huge page pool",
            size_bytes=binding.parts.hugetlb_bytes,
            provenance="exact",
            source=binding.source,
        )
    pages = file_pages(binding.parts, working_set)
    if pages is not None:
        yield from _file_lines(binding, pages)


def _file_lines(binding: Reading, pages: FilePages) -> Iterator[Line]:
    yield Line(
        name="file pages, mapped and in use",
        size_bytes=pages.hot_bytes,
        provenance="estimated",
        source=binding.source,
    )
    if pages.elsewhere_bytes:
        yield Line(
            name="file pages, in use here and charged elsewhere",
            size_bytes=pages.elsewhere_bytes,
            provenance="estimated",
            source="the engine's own processes",
        )
    yield Line(
        name="file pages, dirty or written back",
        size_bytes=pages.unwritten_bytes,
        provenance="derived",
        source=binding.source,
    )


def _process_line(process: ProcessReading) -> Line:
    name = f"{process.name} ({process.pid})"
    if process.anon_bytes is None or process.shmem_bytes is None:
        return Line(name=name, size_bytes=None, provenance="unknown", source=f"/proc/{process.pid}")
    return Line(
        name=name,
        size_bytes=process.anon_bytes + process.shmem_bytes,
        provenance="exact",
        source=f"/proc/{process.pid}/{process.source}",
    )


def _others_line(binding: Reading, own: Sequence[Line]) -> Line:
    """Everybody else's anonymous memory and shmem: tmpfs files that nobody maps, and own processes
    whose size is unknown, are part of it.

    Own memory may be charged to another group, so that the own lines exceed the source's count.
    """
    anon, shmem = binding.parts.anon_bytes, binding.parts.shmem_bytes
    if anon is None or shmem is None:
        return Line(name=OTHERS, size_bytes=None, provenance="unknown", source=binding.source)
    own_bytes = sum(line.size_bytes or 0 for line in own)
    return Line(
        name=OTHERS,
        size_bytes=max(0, anon + shmem - own_bytes),
        provenance="derived",
        source=binding.source,
    )


def _kernel_line(binding: Reading) -> Line:
    size = binding.parts.kernel_bytes
    if size is not None and binding.scope == "host":
        # MemAvailable counts reclaimable slab.
        size = max(0, size - (binding.parts.slab_reclaimable_bytes or 0))
    return Line(
        name="kernel memory",
        size_bytes=size,
        provenance="unknown" if size is None else "exact",
        source=binding.source,
    )


def _charged_lines(binding: Reading) -> Iterator[Line]:
    """What a group is charged for beyond what its counters name.

    A huge page of which a part was given back stays charged as a whole until the kernel splits it,
    which it does under pressure (Documentation/mm/transhuge.rst, deferred split); and each CPU has
    up to 64 pages charged in advance (mm/memcontrol.c).
    """
    parts = binding.parts
    counted = (parts.anon_bytes, parts.file_bytes, parts.kernel_bytes)
    if binding.scope != "group" or binding.used_bytes is None or None in counted:
        return
    beyond_bytes = binding.used_bytes - sum(each or 0 for each in (*counted, parts.hugetlb_bytes))
    if beyond_bytes > 0:
        yield Line(
            name="partly freed huge pages, charges in advance",
            size_bytes=beyond_bytes,
            provenance="derived",
            source=binding.source,
        )


def _margin_lines(settled: Settled, binding: Reading) -> Iterator[Line]:
    for candidate in settled.candidates:
        if candidate.source == binding.source and candidate.margin_bytes:
            yield Line(
                name=(
                    "margin for the host's watermarks"
                    if binding.counts_memory
                    else "kept back for root and small processes"
                ),
                size_bytes=candidate.margin_bytes,
                provenance="estimated",
                source=candidate.source,
            )
        if candidate.source == settled.binding_source and candidate.promised_bytes:
            yield Line(
                name="promised to other engines, and not taken yet",
                size_bytes=candidate.promised_bytes,
                provenance="derived",
                source="their leases",
            )


def _available_lines(settled: Settled, binding: Reading) -> Iterator[Line]:
    """`available`, split into what lies unused and what the kernel must reclaim first."""
    free = binding.free_bytes
    if free is None:
        # A limit can be below what is used: memory.high, or one that was just lowered.
        free = max(0, settled.total_bytes - (binding.used_bytes or 0))
    unused_bytes = min(settled.available_bytes, free)
    sizes_bytes = (unused_bytes, settled.available_bytes - unused_bytes)
    for name, size_bytes in zip(AVAILABLE_LINES, sizes_bytes, strict=True):
        if binding.counts_memory or name == UNUSED:
            yield Line(
                name=name, size_bytes=size_bytes, provenance="derived", source=binding.source
            )

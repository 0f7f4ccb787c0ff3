"""How fast does memory get behind a reservation, with what page and step size?

Compares `KVCache.commit`, which looks at what is available before each step, with one
MADV_POPULATE_WRITE call over the same bytes, with pages of 4 KiB and with huge pages; and how fast
such memory is read in blocks of 64 KiB in random order, as attention reads a KV cache.

Each variant runs once uncounted before, because a virtual machine's host backs memory on the first
touch, which takes many times as long.  Then all variants with the same pages run once a round, in
an order drawn anew for each round: median of 9 rounds.  Huge and small pages are not mixed: what a
variant of small pages frees, the next one of huge pages would get in pieces, and the kernel would
have to make huge pages of them first.

"Growing" is a full cache of the same size that grows by as much again; its address and contents
must be as before, and the process's peak must not show a copy.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from harness.record import RESULTS, Record, Spread, command_line, markdown_table, spread
from ullage.accounting.exact import settle
from ullage.devices import host
from ullage.drivers import libc, procfs
from ullage.errors import EngineFailed, Unreadable
from ullage.kv.cache import KVCache
from ullage.kv.size import Layout, Segment
from ullage.units import GIB, KIB, MIB, parse_size
from ullage.vmem.cpu import CpuMemory, kernel_capabilities

GOAL: Final = (
    "At least 0.85 of the speed of one call of the kernel for the same bytes and pages; growing by "
    "1 GiB moves no byte and takes no longer than committing 1 GiB afresh."
)
SPEED: Final = 0.85
ALIKE: Final = 1.05  # "no longer": medians of 9 differ by a few percent between equal variants
ROUNDS: Final = 9
STEPS_BYTES: Final = (16 * MIB, 64 * MIB, 256 * MIB)
BLOCK_BYTES: Final = 64 * KIB
LAYERS: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """`step_bytes` None: one call of the kernel, without a look at what is available.

    `grown`: a cache of the same size lies below already.
    """

    huge_page_bytes: int | None
    step_bytes: int | None
    layers: int = 1
    grown: bool = False

    @property
    def name(self) -> str:
        pages = "huge pages" if self.huge_page_bytes else "small pages"
        steps = f"steps of {self.step_bytes // MIB} MiB" if self.step_bytes else "one call"
        layers = f", {self.layers} layers" if self.layers > 1 else ""
        return f"{pages}, {steps}{layers}" + (", growing" if self.grown else "")


def page_sizes() -> list[int | None]:
    huge = kernel_capabilities().huge_page_bytes
    return [None] if huge is None else [huge, None]


def variants(page: int | None) -> list[Variant]:
    """The kernel's one call, one range in steps, and what the product does, afresh and growing."""
    own = kernel_capabilities().step_bytes
    one_range = [Variant(huge_page_bytes=page, step_bytes=step) for step in (None, *STEPS_BYTES)]
    layered = Variant(huge_page_bytes=page, step_bytes=own, layers=LAYERS)
    return [*one_range, layered, replace(layered, grown=True)]


def available_bytes() -> int:
    return settle(host.read()).available_bytes


def seconds(action: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def run_once(variant: Variant, size_bytes: int) -> tuple[float, float]:
    """Seconds to commit, and to read every block once."""
    with ExitStack() as undo:
        if variant.step_bytes is None:
            starts, commit = one_call(variant, size_bytes, undo)
        elif variant.grown:
            starts, commit = grown_cache(variant, variant.step_bytes, size_bytes, undo)
        else:
            cache, blocks = kv_cache(variant, variant.step_bytes, size_bytes, undo)
            starts, commit = blocks_of(cache, 0, blocks), lambda: cache.commit(blocks)
        commit_s = seconds(commit)
        random.Random(0).shuffle(starts)  # noqa: S311 - the same order each time
        return commit_s, seconds(lambda: read_blocks(starts))


def one_call(
    variant: Variant, size_bytes: int, undo: ExitStack
) -> tuple[list[int], Callable[[], object]]:
    """Where the blocks start, and what commits them."""
    address = libc.map_inaccessible(size_bytes)
    undo.callback(libc.unmap, address, size_bytes)
    if variant.huge_page_bytes:
        libc.advise(address, size_bytes, libc.MADV_HUGEPAGE)
    libc.protect(address, size_bytes, libc.PROT_READ_WRITE)
    return (
        list(range(address, address + size_bytes, BLOCK_BYTES)),
        lambda: libc.advise(address, size_bytes, libc.MADV_POPULATE_WRITE),
    )


def kv_cache(
    variant: Variant, step_bytes: int, size_bytes: int, undo: ExitStack
) -> tuple[KVCache, int]:
    """As in an engine: addresses for twice as much, and each layer's blocks lie together.

    Also the number of blocks that take `size_bytes`.
    """
    capabilities = replace(
        kernel_capabilities(), huge_page_bytes=variant.huge_page_bytes, step_bytes=step_bytes
    )
    blocks = size_bytes // variant.layers // BLOCK_BYTES
    layer_bytes = 2 * blocks * BLOCK_BYTES
    layout = Layout(
        size_bytes=variant.layers * layer_bytes,
        capacity_blocks=2 * blocks,
        segments=tuple(
            Segment(offset_bytes=layer * layer_bytes, stride_bytes=BLOCK_BYTES)
            for layer in range(variant.layers)
        ),
        granularity_bytes=capabilities.granularity_bytes,
    )
    cache = KVCache(CpuMemory(capabilities), layout, available=available_bytes)
    undo.callback(cache.close)
    return cache, blocks


def grown_cache(
    variant: Variant, step_bytes: int, size_bytes: int, undo: ExitStack
) -> tuple[list[int], Callable[[], object]]:
    """A full cache of `size_bytes` that grows by as much again; at the end it is looked whether
    anything moved."""
    cache, blocks = kv_cache(variant, step_bytes, size_bytes, undo)
    cache.commit(blocks)
    kept = blocks_of(cache, 0, blocks)
    for number, start in enumerate(kept):
        ctypes.memset(start, 1 + number % 255, BLOCK_BYTES)
    before = (cache.address, checksum(kept))
    undo.callback(check_unmoved, cache, kept, before, size_bytes)
    if not procfs.reset_peak_rss("self"):
        raise Unreadable("/proc/self/clear_refs does not work. Mount /proc read-write.")
    return blocks_of(cache, blocks, 2 * blocks), lambda: cache.commit(2 * blocks)


def check_unmoved(
    cache: KVCache, kept: list[int], before: tuple[int, int], size_bytes: int
) -> None:
    """Raises EngineFailed where the cache has another address or other contents, or where there was
    a copy: more memory for a moment than the cache has now."""
    peak_bytes, now_bytes = procfs.peak_rss_bytes("self"), procfs.rss_bytes("self")
    copied = peak_bytes is None or now_bytes is None or peak_bytes - now_bytes > size_bytes // 16
    if copied or (cache.address, checksum(kept)) != before:
        raise EngineFailed("The cache's bytes moved while it grew. See `Region.commit`.")


def checksum(starts: list[int]) -> int:
    total = 0
    for start in starts:
        total = zlib.crc32((ctypes.c_char * BLOCK_BYTES).from_address(start), total)
    return total


def blocks_of(cache: KVCache, first: int, stop: int) -> list[int]:
    """Where these blocks start, layer by layer."""
    return [
        cache.segment_address(segment) + block * BLOCK_BYTES
        for segment in cache.layout.segments
        for block in range(first, stop)
    ]


def read_blocks(starts: list[int]) -> None:
    target = ctypes.create_string_buffer(BLOCK_BYTES)
    for start in starts:
        ctypes.memmove(target, start, BLOCK_BYTES)


def measure(size_bytes: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for page in page_sizes():
        rows += measure_pages(variants(page), size_bytes)
    return rows


def measure_pages(same_pages: list[Variant], size_bytes: int) -> list[dict[str, Any]]:
    """All variants of one page size in turns.  The first is the kernel's one call."""
    for variant in same_pages:
        run_once(variant, size_bytes)  # uncounted
    times: dict[Variant, list[tuple[float, float]]] = {variant: [] for variant in same_pages}
    order = random.Random(0)  # noqa: S311 - the same orders each time
    for _ in range(ROUNDS):
        for variant in order.sample(same_pages, len(times)):
            times[variant].append(run_once(variant, size_bytes))
    by_one_call = [commit_s for commit_s, _ in times[same_pages[0]]]
    return [row(variant, seen, by_one_call) for variant, seen in times.items()]


def row(
    variant: Variant, seen: list[tuple[float, float]], by_one_call: list[float]
) -> dict[str, Any]:
    """`speed`: 1 is as fast as the kernel's one call, by the medians."""
    commits = [commit_s for commit_s, _ in seen]
    return {
        "name": variant.name,
        **asdict(variant),
        "commit_s": asdict(spread(commits)),
        "read_s": asdict(spread([read_s for _, read_s in seen])),
        "speed": round(median(by_one_call) / median(commits), 3),
        "commits_s": [round(each, 4) for each in commits],
    }


def verdicts(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Of what the product does: its own step size, layer by layer.  Pure."""
    own = [each for each in rows if each["layers"] == LAYERS]
    fresh = {each["huge_page_bytes"]: each["commit_s"] for each in own if not each["grown"]}
    grown = {each["huge_page_bytes"]: each["commit_s"] for each in own if each["grown"]}
    return {
        "fast_enough": all(each["speed"] >= SPEED for each in own if not each["grown"]),
        "grows_no_slower": all(
            grown[page]["median"] <= ALIKE * fresh[page]["median"] for page in fresh
        ),
    }


def table(rows: list[dict[str, Any]]) -> str:
    header = ["", "commit, s", "speed", "read, s"]
    cells = [
        [each["name"], *(Spread(**each[key]).text(3) for key in ("commit_s", "read_s"))]
        for each in rows
    ]
    lines = [
        [name, commit_s, f"{each['speed']:.2f}", read_s]
        for each, (name, commit_s, read_s) in zip(rows, cells, strict=True)
    ]
    return f"{markdown_table(header, lines)}\n\n{verdicts(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=parse_size, default=GIB, help="such as 1GiB")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    record = Record(
        name="commit_speed",
        version=2,
        directory=options.output,
        question=__doc__.splitlines()[0],
        goal=GOAL,
        command=command_line(),
        where="the caller's own group",
        settings={"size_bytes": options.size, "rounds": ROUNDS},
    )
    rows = measure(options.size)
    record.write(rows, verdicts(rows), table(rows))
    print(table(rows))
    sys.exit(0 if all(verdicts(rows).values()) else 1)


if __name__ == "__main__":
    main()

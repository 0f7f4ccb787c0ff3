"""How fast does memory get behind a reservation, with what page and step size?

Compares `KVCache.commit`, which looks at what is available before each step, with one
MADV_POPULATE_WRITE call over the same bytes, with pages of 4 KiB and with huge pages; and how fast
such memory is read in blocks of 64 KiB in random order, as attention reads a KV cache.

Each variant runs once uncounted before, because a virtual machine's host backs memory on the first
touch, which takes many times as long, and small and huge pages come from different memory.  Then
all variants run once a round, in an order drawn anew for each round (what a variant frees is what
the next one gets, whole or in pieces): median of 9 rounds, with the fastest and the slowest.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from ullage.accounting.exact import settle
from ullage.compare import machine
from ullage.devices import host
from ullage.drivers import libc
from ullage.kv.cache import KVCache
from ullage.kv.size import Layout, Segment
from ullage.units import KIB, MIB, parse_size
from ullage.vmem.cpu import CpuMemory, kernel_capabilities

ROOT: Final = Path(__file__).resolve().parent.parent
ROUNDS: Final = 9
STEPS_BYTES: Final = (16 * MIB, 64 * MIB, 256 * MIB)
BLOCK_BYTES: Final = 64 * KIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """`step_bytes` None: one call of the kernel, without a look at what is available."""

    huge_page_bytes: int | None
    step_bytes: int | None
    layers: int = 1

    @property
    def name(self) -> str:
        pages = "huge pages" if self.huge_page_bytes else "small pages"
        steps = f"steps of {self.step_bytes // MIB} MiB" if self.step_bytes else "one call"
        return f"{pages}, {steps}" + (f", {self.layers} layers" if self.layers > 1 else "")


def variants() -> list[Variant]:
    huge = kernel_capabilities().huge_page_bytes
    ways = [(None, 1), *((step, 1) for step in STEPS_BYTES), (kernel_capabilities().step_bytes, 32)]
    return [
        Variant(huge_page_bytes=page, step_bytes=step, layers=layers)
        for page in ((None,) if huge is None else (None, huge))
        for step, layers in ways
    ]


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
        else:
            starts, commit = kv_cache(variant, variant.step_bytes, size_bytes, undo)
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
) -> tuple[list[int], Callable[[], object]]:
    """As in an engine: addresses for twice as much, and each layer's blocks lie together."""
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
    starts = [
        cache.segment_address(segment) + block * BLOCK_BYTES
        for segment in layout.segments
        for block in range(blocks)
    ]
    return starts, lambda: cache.commit(blocks)


def read_blocks(starts: list[int]) -> None:
    target = ctypes.create_string_buffer(BLOCK_BYTES)
    for start in starts:
        ctypes.memmove(target, start, BLOCK_BYTES)


def measure(size_bytes: int) -> list[dict[str, Any]]:
    for variant in variants():
        run_once(variant, size_bytes)  # uncounted
    times: dict[Variant, list[tuple[float, float]]] = {variant: [] for variant in variants()}
    order = random.Random(0)  # noqa: S311 - the same orders each time
    for _ in range(ROUNDS):
        for variant in order.sample(variants(), len(times)):
            times[variant].append(run_once(variant, size_bytes))
    return [
        {
            "name": variant.name,
            **asdict(variant),
            "commit_s": spread([commit_s for commit_s, _ in seen]),
            "read_s": spread([read_s for _, read_s in seen]),
        }
        for variant, seen in times.items()
    ]


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def revision() -> str:
    answer = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607 - whichever git the user has
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'':42}{'commit, s (min to max)':>28}{'read, s (min to max)':>28}"]
    for row in rows:
        cells = [
            f"{each['median']:.3f} ({each['min']:.3f} to {each['max']:.3f})"
            for each in (row["commit_s"], row["read_s"])
        ]
        lines.append(f"{row['name']:42}{cells[0]:>28}{cells[1]:>28}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=parse_size, default=1024 * MIB, help="such as 1GiB")
    results = ROOT / "benchmarks/results"
    parser.add_argument("--output", type=Path, default=results / "commit_speed.json")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    rows = measure(arguments.size)
    print(table(rows))
    document = {
        "schema": "ullage.benchmark.commit_speed/1",
        "commit": revision(),
        "machine": asdict(machine.describe("the caller's own group")),
        "load_average_before": load_before,
        "size_bytes": arguments.size,
        "rounds": ROUNDS,
        "variants": rows,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""A receipt with everything in it, from values made up here."""

from __future__ import annotations

from dataclasses import replace

from ullage.accounting.ledger import Line
from ullage.accounting.snapshot import snapshot
from ullage.budget import Engine, budget
from ullage.devices.base import Device, MemoryParts, ProcessReading, Reading
from ullage.report.devices import LedgerReport
from ullage.report.receipt import (
    CacheReport,
    Flags,
    Outcome,
    Phase,
    Receipt,
    StepReport,
    Versions,
    moment,
)
from ullage.units import GIB, MIB

FLAGS = Flags(
    dtype="float32",
    quantization=None,
    load_format="auto",
    max_model_len=2048,
    max_num_batched_tokens=2048,
    max_num_seqs=256,
    block_tokens=128,
    kv_cache_dtype="auto",
    gpu_memory_utilization=0.92,
    enforce_eager=True,
    prefix_caching=True,
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    strict=False,
    margin_bytes=None,
    prompt_logprobs=False,
)
VERSIONS = Versions(ullage="0.1.0", python="3.11.9", kernel="6.1.0", vllm="0.32.0", torch="2.13.0")
BARE = Receipt(
    name="20261130T120000Z-0000aa",
    started_at_s=1.0,
    written_at_s=2.0,
    outcome=Outcome(kind="refused", reason="It is so. Do this."),
    model="org/model",
    versions=VERSIONS,
)


def full_receipt() -> Receipt:
    reading = Reading(
        source="cgroup1:/job",
        scope="group",
        total_bytes=4 * GIB,
        used_bytes=2 * GIB,
        parts=MemoryParts(anon_bytes=2 * GIB, shmem_bytes=0, kernel_bytes=0),
    )
    process = ProcessReading(
        pid=77,
        ppid=1,
        name="VLLM::EngineCor",
        start_time_ticks=1,
        anon_bytes=2 * GIB,
        shmem_bytes=0,
        file_bytes=None,
        source="smaps_rollup",
    )
    taken = snapshot(readings=[reading], processes=[process], taken_at_s=1.0)
    lines = (
        *taken.ledger.lines,
        Line(name="n" * 150, size_bytes=None, provenance="unknown", source="somewhere"),
    )
    bounds = budget(
        total_bytes=4 * GIB,
        available_bytes=2 * GIB,
        engine=Engine(
            used_bytes=2 * GIB, kv_bytes=0, transient_bytes=64 * MIB, later_bytes=32 * MIB
        ),
        margin_bytes=128 * MIB,
        utilization=None,
    )
    return replace(
        BARE,
        outcome=Outcome(kind="started"),
        flags=FLAGS,
        device=Device(platform="host", index=0, name="A processor"),
        baseline=moment(taken),
        final=moment(taken),
        ledger=LedgerReport(total_bytes=4 * GIB, lines=lines, residual_bytes=0),
        budget=bounds,
        transient_bytes=64 * MIB,
        steps=(
            StepReport(name="largest prefill", peak_rss_bytes=1, kept_rss_bytes=1, elapsed_s=0.5),
        ),
        cache=CacheReport(
            blocks=1234, tokens=1234 * 128, block_bytes=MIB, physical_bytes=1234 * MIB
        ),
        phases=(Phase(name="load", elapsed_s=1.25), Phase(name="reserve", elapsed_s=0.75)),
    )

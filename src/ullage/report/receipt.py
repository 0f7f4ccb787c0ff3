"""What one start of an engine tells of itself, as a value.

The field names and what they mean are the formats `ullage.receipt/1` and `ullage.receipts/1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ullage.accounting.snapshot import Snapshot
from ullage.budget import Budget
from ullage.devices.base import Device, ProcessReading, Reading
from ullage.report.devices import LedgerReport

NOT_MODELED: Final = (
    "what the front end and the engine core do after the KV cache is bound, until the first answer",
    "swap: it never counts as available",
)

# begun: the worker runs, and the weights are not read yet; it stays so where the start is killed
# before it is sized, or ended by an error that is not ullage's.  sized: the engine had its answer
# and has not committed yet; it stays so where the engine itself refuses, or the start is ended.
# started: the KV cache is committed and bound.  refused: ended with ullage's error.  stock: left to
# the stock engine.
Kind = Literal["begun", "sized", "started", "refused", "stock"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """`reason` is None where it needs none: begun, started, sized."""

    kind: Kind
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    ullage: str
    python: str
    kernel: str
    vllm: str | None
    torch: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """The engine's settings that decide about memory, as it resolved them, and ullage's own.

    A list of its own: nothing else of the command line or the environment is kept.
    """

    dtype: str
    quantization: str | None
    load_format: str
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_tokens: int | None  # None: not decided yet
    kv_cache_dtype: str
    gpu_memory_utilization: float
    enforce_eager: bool
    prefix_caching: bool
    tensor_parallel_size: int
    pipeline_parallel_size: int
    strict: bool
    margin_bytes: int | None
    prompt_logprobs: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """All readings of one moment, and the memory of the engine's own processes."""

    taken_at_s: float  # Unix time
    total_bytes: int
    available_bytes: int
    binding_source: str
    readings: tuple[Reading, ...]
    processes: tuple[ProcessReading, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """A step of the warm-up: its process's peak while it ran, and what stayed after it.

    Of several ranks both are sums, and the step is as long as its slowest rank's.
    """

    name: str
    peak_rss_bytes: int
    kept_rss_bytes: int
    elapsed_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Each begins where the one before it ended, the first at the receipt's `started_at_s`."""

    name: str
    elapsed_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheReport:
    """Of all ranks.  `tokens` is None where layers differ in how many of them a request keeps."""

    blocks: int
    tokens: int | None
    block_bytes: int
    physical_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """None, or an empty list: the start did not come so far."""

    schema: Literal["ullage.receipt/1"] = "ullage.receipt/1"
    name: str
    started_at_s: float  # Unix time, of the first phase
    written_at_s: float  # Unix time
    outcome: Outcome
    model: str | None  # None: left to stock before that was known
    versions: Versions
    flags: Flags | None = None
    device: Device | None = None
    baseline: Moment | None = None  # before the weights
    final: Moment | None = None  # after the warm-up
    ledger: LedgerReport | None = None  # of `final`, with the KV cache in it
    budget: Budget | None = None
    transient_bytes: int | None = None  # of all ranks together
    steps: tuple[StepReport, ...] = ()
    cache: CacheReport | None = None
    phases: tuple[Phase, ...] = ()
    not_modeled: tuple[str, ...] = NOT_MODELED


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    name: str
    started_at_s: float
    outcome: Outcome
    model: str | None
    cache: CacheReport | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiptsReport:
    """The newest first.  `unreadable`: files that are no receipt of this version."""

    schema: Literal["ullage.receipts/1"] = "ullage.receipts/1"
    folder: str
    receipts: tuple[Summary, ...]
    unreadable: tuple[str, ...]
    not_modeled: tuple[str, ...] = ()


def moment(taken: Snapshot) -> Moment:
    return Moment(
        taken_at_s=taken.taken_at_s,
        total_bytes=taken.total_bytes,
        available_bytes=taken.available_bytes,
        binding_source=taken.binding_source,
        readings=taken.readings,
        processes=taken.processes,
    )


def summary(receipt: Receipt) -> Summary:
    return Summary(
        name=receipt.name,
        started_at_s=receipt.started_at_s,
        outcome=receipt.outcome,
        model=receipt.model,
        cache=receipt.cache,
    )

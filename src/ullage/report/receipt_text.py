"""A receipt, and a list of them, as plain text of at most 80 columns."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from typing import Final

from ullage.accounting.ledger import Line
from ullage.report.devices import LedgerReport
from ullage.report.receipt import CacheReport, Flags, Receipt, ReceiptsReport, Summary, Versions
from ullage.units import gib

WIDTH: Final = 80
_LABEL: Final = 12  # columns of what a line is about
_SIZE: Final = 11
_NOTE: Final = 9  # the longest provenance


def receipt_text(receipt: Receipt) -> str:
    """What the start ended with, its ledger, its warm-up and where its time went."""
    blocks = [_head(receipt)]
    if receipt.ledger is not None:
        blocks.append(_ledger(receipt.ledger))
    blocks += [block for block in (_steps(receipt), _phases(receipt)) if block]
    return "\n\n".join(blocks) + "\n"


def receipts_text(report: ReceiptsReport) -> str:
    """A paragraph for each, the newest first."""
    rows = [row for each in report.receipts for row in _summary_rows(each)]
    rows += [_labelled("unreadable", name) for name in report.unreadable]
    return "\n".join(rows or [f"There is no receipt in {report.folder}."]) + "\n"


def _summary_rows(each: Summary) -> Iterator[str]:
    size = "" if each.cache is None else f", {_cache(each.cache)}"
    yield f"{each.name}  {each.outcome.kind}{size}"
    for text in (each.model, each.outcome.reason):
        if text is not None:
            yield _wrapped("  ", text)


def _head(receipt: Receipt) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(receipt.started_at_s))
    rows = [
        _labelled("receipt", f"{receipt.name}, {began}"),
        _labelled("outcome", receipt.outcome.kind),
        _labelled("reason", receipt.outcome.reason),
        _labelled("model", receipt.model),
        _labelled("flags", None if receipt.flags is None else _flags(receipt.flags)),
        _labelled("versions", _versions(receipt.versions)),
        _labelled("KV cache", None if receipt.cache is None else _cache(receipt.cache)),
    ]
    return "\n".join(row for row in rows if row)


def _labelled(label: str, text: str | None) -> str:
    return "" if text is None else _wrapped(f"{label:<{_LABEL}}", text)


def _wrapped(before: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=before, subsequent_indent=" " * len(before))


def _flags(flags: Flags) -> str:
    quantized = "" if flags.quantization is None else f", {flags.quantization}"
    return (
        f"{flags.dtype}{quantized}, {flags.max_model_len} tokens a request, "
        f"{flags.max_num_batched_tokens} a step, {flags.max_num_seqs} requests at once"
    )


def _versions(versions: Versions) -> str:
    return (
        f"ullage {versions.ullage}, vLLM {versions.vllm}, torch {versions.torch}, "
        f"Python {versions.python}, Linux {versions.kernel}"
    )


def _cache(cache: CacheReport) -> str:
    tokens = "" if cache.tokens is None else f"{cache.tokens:,} tokens in "
    return f"{tokens}{cache.blocks:,} blocks, {gib(cache.physical_bytes)}"


def _ledger(ledger: LedgerReport) -> str:
    rows = [row for line in ledger.lines for row in _line_rows(line)]
    rows.append(_row(gib(ledger.residual_bytes, digits=3), "residual", "derived"))
    rows.append(_row(gib(ledger.total_bytes, digits=3), "total", ""))
    return "\n".join(rows)


def _line_rows(line: Line) -> Iterator[str]:
    size = "?" if line.size_bytes is None else gib(line.size_bytes, digits=3)
    first, *more = textwrap.wrap(line.name, WIDTH - _SIZE - _NOTE - 4) or [""]
    yield _row(size, first, line.provenance)
    for part in more:
        yield _row("", f"  {part}", "")


def _row(size: str, name: str, note: str) -> str:
    width = WIDTH - _SIZE - _NOTE - 4
    return f"{size:>{_SIZE}}  {name:<{width}}  {note}".rstrip()


def _steps(receipt: Receipt) -> str:
    return "\n".join(
        _labelled(
            "step",
            f"{step.name}: {step.elapsed_s:.1f} s, peak {gib(step.peak_rss_bytes, digits=3)}, "
            f"kept {gib(step.kept_rss_bytes, digits=3)}",
        )
        for step in receipt.steps
    )


def _phases(receipt: Receipt) -> str:
    rows = [(phase.elapsed_s, phase.name) for phase in receipt.phases]
    rows += [(sum(elapsed_s for elapsed_s, _ in rows), "all of it")] if rows else []
    return "\n".join(f"{elapsed_s:>9.2f} s  {name}" for elapsed_s, name in rows)

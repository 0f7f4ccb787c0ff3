"""What a start tells of itself while it goes on, and its receipt at the end.

Imports nothing of vLLM: a start that ends before the engine's imports has a receipt too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from ullage import receipts
from ullage.accounting.snapshot import Snapshot
from ullage.errors import UllageError, Unreadable
from ullage.kv.cache import KVCache
from ullage.report.devices import LedgerReport
from ullage.report.receipt import (
    CacheReport,
    Kind,
    Outcome,
    Phase,
    Receipt,
    StepReport,
    moment,
)
from ullage.report.receipt_text import receipt_text
from ullage.vllm_plugin import described
from ullage.vllm_plugin.decision import Decision
from ullage.vllm_plugin.ranks import ALONE, Ranks
from ullage.vllm_plugin.settings import Settings

_USER: Final = re.compile(r"(\w://)[^\s/]*@")
_QUERY: Final = re.compile(r"(\w://[^\s?#'\"]*)[?#][^\s'\"]*")
_MOST_CHARACTERS: Final = 2000

Warn = Callable[[str], object]


class Recorder:
    """One start.  Its phases leave no gap: each `lap` names the time since the one before it.

    Nothing of it ends a start: what cannot be read is None, and a receipt that cannot be written is
    one warning.
    """

    def __init__(
        self,
        *,
        model: str | None,
        settings: Settings,
        warn: Warn,
        rank: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._warn = warn
        self._tells = rank == 0  # of several ranks the first one, for all
        self._lap_began_s = self._clock()
        self._phases: list[Phase] = []
        self._fields: dict[str, Any] = {
            "name": receipts.new_name(),
            "started_at_s": time.time(),
            "model": None if model is None else _printable(model),
            "versions": described.versions(),
            "device": described.device(),
        }

    def lap(self, name: str) -> None:
        now_s = self._clock()
        self._phases.append(Phase(name=name, elapsed_s=now_s - self._lap_began_s))
        self._lap_began_s = now_s

    def flags(self, config: Any) -> None:
        """`config`: a VllmConfig that is filled in."""
        self._fields["flags"] = described.flags(config, self._settings)

    def baseline(self, take: Callable[[], Snapshot]) -> None:
        """Before the weights.  From here on the start has a receipt, also where it is killed."""
        try:
            self._fields["baseline"] = moment(take())
        except Unreadable:
            self._fields["baseline"] = None
        self.finish("begun")

    def sized(self, *, taken: Snapshot, decision: Decision, warmed: Sequence[Any]) -> None:
        """`warmed`: the `warm_up.WarmUp` of each rank; that module needs torch."""
        ledger = decision.ledger
        self._fields |= {
            "final": moment(taken),
            "ledger": LedgerReport(
                total_bytes=ledger.total_bytes,
                lines=ledger.lines,
                residual_bytes=ledger.residual_bytes,
            ),
            "budget": decision.budget,
            "transient_bytes": sum(each.transient_bytes for each in warmed),
            "steps": tuple(map(_step, *(each.steps for each in warmed))),
        }

    def committed(self, groups: Sequence[Any], cache: KVCache, ranks: Ranks = ALONE) -> None:
        """`groups`: the engine's, of layers that keep the same of a request.  All ranks call."""
        block_tokens = groups[0].kv_cache_spec.block_size if len(groups) == 1 else None
        blocks = cache.committed_blocks
        sizes = ranks.gather(lambda: (cache.layout.block_bytes, cache.physical_bytes))
        self._fields["cache"] = CacheReport(
            blocks=blocks,
            tokens=None if block_tokens is None else blocks * block_tokens,
            block_bytes=sum(block_bytes for block_bytes, _ in sizes),
            physical_bytes=sum(physical_bytes for _, physical_bytes in sizes),
        )

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """An error of ours that leaves the block ends the start, and its receipt says so."""
        try:
            yield
        except UllageError as error:
            self.lap("until it was refused")
            self.finish("refused", str(error))
            raise

    def finish(self, kind: Kind, reason: str | None = None) -> None:
        """Write the receipt, in the place of an earlier one of this start."""
        if not self._tells:
            return
        outcome = Outcome(kind=kind, reason=None if reason is None else _printable(reason))
        receipt = Receipt(
            **self._fields,
            outcome=outcome,
            written_at_s=time.time(),
            phases=tuple(self._phases),
        )
        self._write(receipt)
        if self._settings.explain and kind not in ("begun", "sized"):
            # One call, so that the lines of other processes do not come in between.
            with suppress(OSError):  # stderr may be a pipe that nobody reads any more
                os.write(2, receipt_text(receipt).encode())

    def _write(self, receipt: Receipt) -> None:
        where = receipts.folder(os.environ)
        if where is None:
            return
        try:
            receipts.write(where, receipt)
        except (OSError, Unreadable) as error:
            self._warn(
                f"The receipt of this start cannot be written to {where}: {error}. Set "
                f"{receipts.SWITCH} to a folder that can be written, or to 0."
            )


def _printable(text: str) -> str:
    """A file's name may hold bytes that are no text, and an address what opens a door."""
    clean = _QUERY.sub(r"\1", _USER.sub(r"\1", text.encode("utf-8", "backslashreplace").decode()))
    return clean if len(clean) <= _MOST_CHARACTERS else f"{clean[:_MOST_CHARACTERS]} ..."


def _step(*of_each_rank: Any) -> StepReport:
    return StepReport(
        name=of_each_rank[0].name,
        peak_rss_bytes=sum(step.peak_rss_bytes for step in of_each_rank),
        kept_rss_bytes=sum(step.kept_rss_bytes for step in of_each_rank),
        elapsed_s=max(step.elapsed_s for step in of_each_rank),
    )

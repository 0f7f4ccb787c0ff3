"""From a bound cache to the number of its blocks: warm up, read, decide, all ranks together."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm import envs
from vllm.logger import init_logger

from ullage.drivers import malloc, steady_heap
from ullage.errors import DoesNotFit
from ullage.kv.cache import KVCache
from ullage.report.ledger import ledger_text
from ullage.units import MIB
from ullage.vllm_plugin import compiled, connectors, kernels, warm_up
from ullage.vllm_plugin.before_weights import longest_request_blocks
from ullage.vllm_plugin.decision import Decision, Part, decide, why_nothing_fits
from ullage.vllm_plugin.flags import explicit_utilization
from ullage.vllm_plugin.later import later_bytes
from ullage.vllm_plugin.observe import Observer
from ullage.vllm_plugin.ranks import Ranks
from ullage.vllm_plugin.recorder import Recorder
from ullage.vllm_plugin.settings import Settings
from ullage.vllm_plugin.tenant import Tenant
from ullage.vllm_plugin.versions import EngineRules

logger = init_logger("vllm.ullage.worker")

_MOST_HOLES_BYTES: Final = 64 * MIB
_LEAST_BLOCKS: Final = 2  # the null block, and one for tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizing:
    """What one start is sized with.  `worker` is vLLM's, with its runner and its configuration.

    `heap_spreads`: the C heap is as it is, and keeps what steps free in pieces.
    """

    worker: Any
    cache: KVCache
    rules: EngineRules
    settings: Settings
    ranks: Ranks
    observer: Observer
    tenant: Tenant
    recorder: Recorder
    heap_spreads: bool

    def blocks(self, *, started_s: float) -> int:
        """Blocks that fit, the same in all ranks.  `started_s`: Unix time at which it began.

        Raises DoesNotFit where there is no room for one of tokens, or for the largest step.
        """
        decision = self._measure(started_s)
        if decision.blocks < _LEAST_BLOCKS:
            raise DoesNotFit(self._why_nothing_fits(decision))
        return decision.blocks

    def _measure(self, started_s: float) -> Decision:
        # Nothing may address blocks that have no memory yet.
        self.worker.model_runner.kv_cache_config.num_blocks = self.cache.committed_blocks
        capacity_blocks = min(self.ranks.gather(lambda: self.cache.layout.capacity_blocks))
        sizes = warm_up.Sizes(
            max_model_len=self.worker.model_config.max_model_len,
            capacity_tokens=capacity_blocks * self.worker.cache_config.block_size,
        )
        if not self.heap_spreads:
            _give_back_holes()
            steady_heap.keep_everything()
        warmed = warm_up.run(
            self.worker.model_runner,
            sizes=sizes,
            prompt_logprobs=self.settings.prompt_logprobs,
            available=lambda: self._available_in_use(sizes),
            ranks=self.ranks,
            lap=self.recorder.lap,
            settle_heap=self._settle_heap,
        )
        kernels_to_come_bytes = kernels.to_come_bytes(
            self.worker.model_runner.model, self.worker.model_config.dtype, os.environ
        )
        compiled.write_out(started_s)
        self.recorder.lap("compiled files written")
        self._watch_usual_work(sizes)
        self.recorder.lap("usual work")
        logger.info("ullage warm-up: %s.", warmed.text())
        part = Part(
            pid=os.getpid(),
            layout=self.cache.layout,
            committed_bytes=self.cache.physical_bytes,
            transient_bytes=warmed.transient_bytes,
            heap=malloc.heap(),
            heap_spreads=self.heap_spreads,
            kernels_to_come_bytes=kernels_to_come_bytes,
        )
        parts = self.ranks.gather(lambda: part)
        every = self.ranks.gather(lambda: warmed)
        return self.ranks.first(lambda: self._decide(parts, every))

    def _decide(self, parts: Sequence[Part], warmed: Sequence[warm_up.WarmUp]) -> Decision:
        """For all ranks."""
        taken = self.observer.take()
        block_bytes = sum(part.layout.block_bytes for part in parts)
        key = alike(self.worker.vllm_config, self.settings, block_bytes)
        decision = decide(
            snapshot=taken,
            parts=parts,
            later_bytes=later_bytes(
                self.rules,
                vocabulary=self.worker.model_config.get_vocab_size(),
                max_num_seqs=self.worker.scheduler_config.max_num_seqs,
                grammar_cache_bytes=envs.VLLM_XGRAMMAR_CACHE_MB * MIB,
                ranks=len(parts),
                spreading_heaps=sum(part.heap_spreads for part in parts),
            )
            + sum(part.kernels_to_come_bytes for part in parts)
            + sum(connectors.copied_bytes(self.worker.vllm_config, part.layout) for part in parts),
            margin_bytes=self.settings.margin_bytes,
            utilization=explicit_utilization(self.worker.cache_config),
            limit_at_start_bytes=self.observer.limit_at_start_bytes,
            promise=self.tenant.promise(taken, key),
        )
        if changed := decision.limit.change():
            logger.info("ullage: %s.", changed)
        logger.info(
            "ullage: %d KV cache blocks fit.\n%s", decision.blocks, ledger_text(decision.ledger)
        )
        self.tenant.decided(decision, taken)
        self.recorder.sized(taken=taken, decision=decision, warmed=warmed)
        return decision

    def _why_nothing_fits(self, decision: Decision) -> str:
        layout = self.cache.layout
        return why_nothing_fits(
            decision,
            sum(self.ranks.gather(lambda: layout.block_bytes)),
            block_tokens=self.worker.cache_config.block_size,
            request_blocks=longest_request_blocks(self.worker, self.rules, layout.block_bytes),
        )

    def _settle_heap(self) -> None:
        """A heap that keeps what is freed in one piece has it for the steps.  Given back, it would
        be taken again, and huge pages that lost a part stay charged as a whole."""
        gc.collect()
        if self.heap_spreads:
            malloc.release_free_memory()

    def _watch_usual_work(self, sizes: warm_up.Sizes) -> None:
        self.observer.watch_usual_work(lambda: warm_up.usual_work(self.worker.model_runner, sizes))

    def _available_in_use(self, sizes: warm_up.Sizes) -> int:
        """With room for the file pages that the usual work uses, and not for all that is mapped."""
        self._watch_usual_work(sizes)
        available = self.ranks.first(lambda: self.observer.take().available_bytes)
        mappable = self.ranks.gather(self.observer.mappable_bytes)
        return min([available, *(size for size in mappable if size is not None)])


def _give_back_holes() -> None:
    """Where loading left so many that steps may not fill them.

    Each weight is packed anew and the old one freed: whether the next one fits into its place is a
    matter of alignment.  Measured: 50 MiB in most starts, over 400 in one.
    """
    heap = malloc.heap()
    if heap is None or heap.cached_bytes > _MOST_HOLES_BYTES:
        malloc.release_free_memory()


def alike(config: Any, own: Settings, block_bytes: int) -> str:
    """The same for starts of one VllmConfig that take the same memory beside the KV cache.

    `block_bytes`: of one block in all ranks together.
    """
    model, scheduler = config.model_config, config.scheduler_config
    parts = (
        *(model.model, model.revision, model.dtype, model.quantization, model.enforce_eager),
        *(model.max_model_len, scheduler.max_num_batched_tokens, scheduler.max_num_seqs),
        *(block_bytes, own.margin_bytes, own.prompt_logprobs),
        *(config.parallel_config.tensor_parallel_size, config.parallel_config.world_size),
    )
    return " ".join(map(str, parts))

"""vLLM's CPU worker with a KV cache that gets its memory after the warm-up.

The engine's own sequence is kept: it asks `determine_available_memory`, plans blocks from the
answer, and calls `initialize_from_config`.  In the first call the cache is bound at addresses for
the most that could ever fit, with memory behind one block; the warm-up runs, and what is left then
is the answer.  In the second call the blocks that the engine planned get their memory.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from vllm import envs
from vllm.config.cache import CacheConfig
from vllm.logger import init_logger

from ullage.drivers import malloc
from ullage.errors import DoesNotFit, MemoryRefused, Unreadable, Unsupported
from ullage.kv.cache import KVCache
from ullage.report.ledger import ledger_text
from ullage.units import MIB, gib
from ullage.vllm_plugin import (
    compiled,
    connectors,
    placement,
    ranks,
    settings,
    tenant,
    versions,
    warm_up,
)
from ullage.vllm_plugin.decision import Decision, Part, decide, why_nothing_fits
from ullage.vllm_plugin.later import later_bytes
from ullage.vllm_plugin.observe import Observer
from ullage.vllm_plugin.sleep import SleepingCPUWorker
from ullage.vmem.cpu import CpuMemory

logger = init_logger("vllm.ullage.worker")

_LEAST_BLOCKS = 2  # the null block, and one for tokens
# The C library starts at 128 KiB and moves up to 32 MiB with each block that is freed (mallopt(3)):
# the heap then keeps, spread, what a step took for a moment.  Mapped by itself, a block costs page
# faults each time, few of them where it can be a huge page.
_LARGE_BLOCK_BYTES = 2 * MIB


def _rules() -> versions.EngineRules:
    rules = versions.rules_for(versions.installed())
    if rules is None:
        raise Unsupported(f"vLLM {versions.installed()} is not handled. Unset ULLAGE to start it.")
    return rules


@contextmanager
def _start_check_disarmed(rules: versions.EngineRules) -> Iterator[None]:
    """Let the stock constructor see as much available memory as there is in total.

    It refuses to start where utilization x total exceeds what is free before anything is loaded.
    The exact check comes with the exact number, after the warm-up.
    """
    module = importlib.import_module(rules.reading[0])
    stock = getattr(module, rules.reading[1])

    def generous(node: int) -> Any:
        info = stock(node)
        info.available_memory = info.total_memory
        return info

    setattr(module, rules.reading[1], generous)
    try:
        yield
    finally:
        setattr(module, rules.reading[1], stock)


class UllageCPUWorker(SleepingCPUWorker):
    """Stands in for `CPUWorker` where `eligible.reason_against` found no reason against it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._cache: KVCache | None = None
        self._capacity: Any = None
        self._rules = _rules()
        self._ranks = ranks.ALONE
        self._observer = Observer()
        self._started_s = time.time()
        self._settings = settings.read(os.environ)
        self._tenant = tenant.Tenant()
        malloc.map_large_blocks(_LARGE_BLOCK_BYTES)
        with _start_check_disarmed(self._rules):
            super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        super().init_device()
        self._ranks = ranks.of_the_engine()
        self._observer = Observer(self._ranks)
        utilization = self._explicit_utilization()
        self._ranks.first(lambda: self._tenant.enter(self._observer, utilization))

    def determine_available_memory(self) -> int:
        """Bytes that make the engine plan exactly the blocks that fit."""
        try:
            cache = self._ranks.together(self._reserve)
        except (MemoryRefused, Unsupported, Unreadable) as error:
            self._release()
            if self._settings.strict:
                raise
            self._tenant.leave()
            if self._ranks.rank == 0:
                logger.warning("ullage leaves this start to stock vLLM: %s", error)
            return int(super().determine_available_memory())
        with self._tenant.leaving_on_error():
            return self._ranks.together(lambda: self._sized(cache))

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Commit what the engine planned, and bind views of exactly that."""
        if self._cache is None:
            super().initialize_from_config(kv_cache_config)
            return
        cache = self._cache
        with self._tenant.leaving_on_error():
            self._ranks.together(lambda: self._commit(kv_cache_config, cache))
            self._ranks.first(self._tenant.committed)

    def shutdown(self) -> None:
        self._tenant.leave()
        super().shutdown()

    def _sized(self, cache: KVCache) -> int:
        self._ranks.first(self._tenant.begin_measuring)
        if self._should_warm_up_model():
            self.model_runner.warming_up_model()
        with connectors.none_yet():
            super().initialize_from_config(self._capacity)
        decision = self._measure(cache)
        if decision.blocks < _LEAST_BLOCKS:
            block_bytes = sum(self._ranks.gather(lambda: cache.layout.block_bytes))
            raise DoesNotFit(why_nothing_fits(decision, block_bytes))
        return decision.blocks * cache.layout.block_bytes

    def _commit(self, kv_cache_config: Any, cache: KVCache) -> None:
        """One rank after the other: two that look at once would both count the same free bytes."""
        blocks = kv_cache_config.num_blocks
        placement.check_planned(
            self, self._rules, self._capacity, kv_cache_config, cache.layout.block_bytes
        )
        self._adopt(kv_cache_config)
        logger.info("ullage commits %d blocks.", blocks)
        with ExitStack() as undo:
            undo.callback(cache.shrink, cache.committed_blocks)
            self._ranks.in_turn(lambda: _grow(cache, blocks))
            undo.pop_all()
        views = placement.bind_committed(
            self.model_runner,
            self._capacity,
            cache,
            self.cache_config.get_resolved_kv_cache_layout(),
        )
        connectors.make(self.vllm_config, kv_cache_config, views)
        logger.info(
            "ullage committed %d blocks, %s, at the addresses of the warm-up.",
            cache.committed_blocks,
            gib(cache.physical_bytes),
        )

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        if tag == "kv_cache" and self._cache is not None:
            return placement.ServedFrom(self._cache)
        return super()._maybe_get_memory_pool_context(tag)

    def _reserve(self) -> KVCache:
        """Addresses for what the whole limit could hold, and memory for the null block."""
        warm_up.check_measurable()
        total_bytes = self._ranks.first(lambda: self._observer.take().total_bytes)
        memory = CpuMemory()
        capacity = placement.capacity_config(self, self._rules, total_bytes, self._ranks)
        layout = placement.layout_of(
            capacity, granularity_bytes=memory.capabilities.granularity_bytes
        )
        self._observer.check_addresses(layout.size_bytes)
        self._cache = self._ranks.in_turn(
            lambda: KVCache(memory, layout, available=self._observer.available_bytes)
        )
        self._capacity = capacity
        return self._cache

    def _release(self) -> None:
        if self._cache is not None:
            self._cache.close()
        self._cache = None

    def _measure(self, cache: KVCache) -> Decision:
        # Nothing may address blocks that have no memory yet.
        self.model_runner.kv_cache_config.num_blocks = cache.committed_blocks
        capacity_blocks = min(self._ranks.gather(lambda: cache.layout.capacity_blocks))
        sizes = warm_up.Sizes(
            max_model_len=self.model_config.max_model_len,
            capacity_tokens=capacity_blocks * self.cache_config.block_size,
        )
        warmed = warm_up.run(
            self.model_runner,
            sizes=sizes,
            prompt_logprobs=self._settings.prompt_logprobs,
            available=lambda: self._available_in_use(sizes),
            ranks=self._ranks,
        )
        compiled.write_out(self._started_s)
        self._watch_usual_work(sizes)
        logger.info("ullage warm-up: %s.", warmed.text())
        part = Part(
            pid=os.getpid(),
            layout=cache.layout,
            committed_bytes=cache.physical_bytes,
            transient_bytes=warmed.transient_bytes,
            heap=malloc.heap(),
        )
        parts = self._ranks.gather(lambda: part)
        return self._ranks.first(lambda: self._decide(parts))

    def _decide(self, parts: Sequence[Part]) -> Decision:
        """For all ranks."""
        taken = self._observer.take()
        block_bytes = sum(part.layout.block_bytes for part in parts)
        alike = tenant.alike(self.vllm_config, self._settings, block_bytes)
        decision = decide(
            snapshot=taken,
            parts=parts,
            later_bytes=later_bytes(
                self._rules,
                vocabulary=self.model_config.get_vocab_size(),
                max_num_seqs=self.scheduler_config.max_num_seqs,
                grammar_cache_bytes=envs.VLLM_XGRAMMAR_CACHE_MB * MIB,
                ranks=len(parts),
            )
            + sum(connectors.copied_bytes(self.vllm_config, part.layout) for part in parts),
            margin_bytes=self._settings.margin_bytes,
            utilization=self._explicit_utilization(),
            limit_at_start_bytes=self._observer.limit_at_start_bytes,
            promise=self._tenant.promise(taken, alike),
        )
        if changed := decision.limit.change():
            logger.info("ullage: %s.", changed)
        logger.info(
            "ullage: %d KV cache blocks fit.\n%s", decision.blocks, ledger_text(decision.ledger)
        )
        self._tenant.decided(decision, taken)
        return decision

    def _watch_usual_work(self, sizes: warm_up.Sizes) -> None:
        self._observer.watch_usual_work(lambda: warm_up.usual_work(self.model_runner, sizes))

    def _available_in_use(self, sizes: warm_up.Sizes) -> int:
        """With room for the file pages that the usual work uses, and not for all that is mapped."""
        self._watch_usual_work(sizes)
        available = self._ranks.first(lambda: self._observer.take().available_bytes)
        mappable = self._ranks.gather(self._observer.mappable_bytes)
        return min([available, *(size for size in mappable if size is not None)])

    def _explicit_utilization(self) -> float | None:
        """The user's fraction; None where it is the engine's default, which nobody chose."""
        value = float(self.cache_config.gpu_memory_utilization)
        # A pydantic dataclass keeps a FieldInfo, with the default inside, as the field's default.
        field = CacheConfig.__dataclass_fields__["gpu_memory_utilization"].default
        return None if value == getattr(field, "default", field) else value

    def _adopt(self, kv_cache_config: Any) -> None:
        """What the stock method takes over from the engine's configuration."""
        blocks = kv_cache_config.num_blocks
        self.cache_config.num_gpu_blocks = blocks
        self.cache_config.hash_block_size = kv_cache_config.hash_block_size
        self.cache_config.cache_hit_alignment_tokens = kv_cache_config.cache_hit_alignment_tokens
        self.model_runner.kv_cache_config.num_blocks = blocks


def _grow(cache: KVCache, blocks: int) -> None:
    if cache.commit(blocks) != blocks:
        raise Unsupported(
            f"The engine plans {blocks} blocks, and there are addresses for "
            f"{cache.layout.capacity_blocks}. Unset ULLAGE to start as stock does."
        )

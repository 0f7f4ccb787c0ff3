"""vLLM's CPU worker with a KV cache that gets its memory after the warm-up.

The engine's own sequence is kept: it asks `determine_available_memory`, plans blocks from the
answer, and calls `initialize_from_config`.  In the first call the cache is bound at addresses for
the most that could ever fit, with memory behind one block; the warm-up runs, and what is left then
is the answer.  In the second call the blocks that the engine planned get their memory.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from vllm.logger import init_logger

from ullage.drivers import steady_heap
from ullage.errors import MemoryRefused, UllageError, Unreadable, Unsupported
from ullage.kv.cache import KVCache
from ullage.units import gib
from ullage.vllm_plugin import (
    connectors,
    placement,
    ranks,
    settings,
    tenant,
    versions,
    warm_up,
)
from ullage.vllm_plugin.before_weights import refused_early
from ullage.vllm_plugin.flags import explicit_utilization
from ullage.vllm_plugin.observe import Observer
from ullage.vllm_plugin.recorder import Recorder
from ullage.vllm_plugin.sizing import Sizing
from ullage.vllm_plugin.sleep import SleepingCPUWorker
from ullage.vllm_plugin.start_check import start_check_disarmed
from ullage.vmem.cpu import CpuMemory

logger = init_logger("vllm.ullage.worker")


def _rules() -> versions.EngineRules:
    rules = versions.rules_for(versions.installed())
    if rules is None:
        raise Unsupported(f"vLLM {versions.installed()} is not handled. Unset ULLAGE to start it.")
    return rules


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
        self._heap_spreads = not steady_heap.keep_freed_memory()
        with start_check_disarmed(self._rules):
            super().__init__(*args, **kwargs)
        self._recorder = Recorder(
            model=self.model_config.model,
            settings=self._settings,
            warn=logger.warning,
            rank=self.rank,
        )
        self._recorder.baseline(self._observer.take)

    def init_device(self) -> None:
        super().init_device()
        self._ranks = ranks.of_the_engine()
        self._observer = Observer(self._ranks)
        utilization = explicit_utilization(self.cache_config)
        # In one process with the front end nobody shuts a worker down whose start vLLM gives up.
        weakref.finalize(self, self._tenant.leave).atexit = False
        with self._ending_on_error():
            self._ranks.first(lambda: self._tenant.enter(self._observer, utilization))

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Refuses, before the weights are read, what could not fit."""
        self._recorder.lap("device and ranks")
        self._recorder.flags(self.vllm_config)
        early = refused_early(
            self,
            self._rules,
            margin_bytes=self._settings.margin_bytes,
            ranks=self._ranks,
            room=self._tenant.room,
        )
        with self._ending_on_error(), early:
            super().load_model(load_dummy_weights=load_dummy_weights)
        self._recorder.lap("load")

    def determine_available_memory(self) -> int:
        """Bytes that make the engine plan exactly the blocks that fit."""
        with self._ending_on_error():
            return self._sized_or_stock()

    def _sized_or_stock(self) -> int:
        self._recorder.lap("engine core asks for the layers")
        try:
            cache = self._ranks.together(self._reserve)
        except (MemoryRefused, Unsupported, Unreadable) as error:
            self._release()
            if self._settings.strict:
                raise
            self._refuse_a_share(error)
            self._tenant.leave()
            if self._ranks.rank == 0:
                logger.warning("ullage leaves this start to stock vLLM: %s", error)
            self._recorder.finish("stock", str(error))
            return int(super().determine_available_memory())
        self._recorder.lap("reserve")
        size_bytes = self._ranks.together(lambda: self._sized(cache))
        self._recorder.finish("sized")
        return size_bytes

    def _refuse_a_share(self, error: UllageError) -> None:
        share = self._settings.share
        if share is not None:
            raise Unsupported(
                f"Stock vLLM would take over, and not keep to ULLAGE_SHARE={share}: {error} "
                "Unset ULLAGE_SHARE to start as stock does."
            ) from error

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Commit what the engine planned, and bind views of exactly that."""
        if self._cache is None:
            super().initialize_from_config(kv_cache_config)
            return
        cache = self._cache
        self._recorder.lap("engine core plans the blocks")
        with self._ending_on_error():
            self._ranks.together(lambda: self._commit(kv_cache_config, cache))
            self._ranks.first(self._tenant.committed)
        self._recorder.lap("bind")
        self._recorder.committed(kv_cache_config.kv_cache_groups, cache, self._ranks)
        self._recorder.finish("started")

    def shutdown(self) -> None:
        try:
            super().shutdown()
        finally:
            self._tenant.leave()

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """Around each step of a start: what leaves it ends the start.  The lease goes last."""
        with self._tenant.leaving_on_error(), self._recorder.refusals():
            yield

    def _sized(self, cache: KVCache) -> int:
        self._ranks.first(self._tenant.begin_measuring)
        self._recorder.lap("wait for other engines")
        if self._should_warm_up_model():
            self.model_runner.warming_up_model()
        self._recorder.lap("compile")
        with connectors.none_yet():
            super().initialize_from_config(self._capacity)
        self._recorder.lap("bind at capacity")
        blocks = self._fitting_blocks(cache)
        self._recorder.lap("decision")
        return blocks * cache.layout.block_bytes

    def _fitting_blocks(self, cache: KVCache) -> int:
        """Raises DoesNotFit where they are too few for one request."""
        sizing = Sizing(
            worker=self,
            cache=cache,
            rules=self._rules,
            settings=self._settings,
            ranks=self._ranks,
            observer=self._observer,
            tenant=self._tenant,
            recorder=self._recorder,
            heap_spreads=self._heap_spreads,
        )
        return sizing.blocks(started_s=self._started_s)

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
        self._recorder.lap("commit")
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

        def bound() -> KVCache:
            # Kept at once: `_release` closes it where a later rank fails.
            self._cache = KVCache(memory, layout, available=self._observer.available_bytes)
            return self._cache

        self._capacity = capacity
        return self._ranks.in_turn(bound)

    def _release(self) -> None:
        if self._cache is not None:
            self._cache.close()
        self._cache = None

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

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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
    settings,
    tenant,
    versions,
    warm_up,
)
from ullage.vllm_plugin.before_weights import longest_request_blocks, refused_early
from ullage.vllm_plugin.decision import Decision, decide, why_nothing_fits
from ullage.vllm_plugin.later import later_bytes
from ullage.vllm_plugin.observe import Observer
from ullage.vllm_plugin.recorder import Recorder
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
        self._observer = Observer()
        self._started_s = time.time()
        self._settings = settings.read(os.environ)
        self._tenant = tenant.Tenant()
        malloc.map_large_blocks(_LARGE_BLOCK_BYTES)
        with _start_check_disarmed(self._rules):
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
        if self.rank == 0:
            with self._recorder.refusals():
                self._tenant.enter(self._observer, self._explicit_utilization())

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Refuses, before the weights are read, what could not fit."""
        self._recorder.lap("device and ranks")
        self._recorder.flags(self.vllm_config)
        early = refused_early(self, self._rules, self._settings.margin_bytes)
        with self._recorder.refusals(), self._tenant.leaving_on_error(), early:
            super().load_model(load_dummy_weights=load_dummy_weights)
        self._recorder.lap("load")

    def determine_available_memory(self) -> int:
        """Bytes that make the engine plan exactly the blocks that fit."""
        with self._recorder.refusals():
            return self._sized()

    def _sized(self) -> int:
        self._recorder.lap("engine core asks for the layers")
        try:
            cache = self._reserve()
        except (MemoryRefused, Unsupported, Unreadable) as error:
            if self._settings.strict:
                raise
            self._tenant.leave()
            logger.warning("ullage leaves this start to stock vLLM: %s", error)
            self._recorder.finish("stock", str(error))
            return int(super().determine_available_memory())
        self._recorder.lap("reserve")
        with self._tenant.leaving_on_error():
            self._tenant.begin_measuring()
            self._recorder.lap("wait for other engines")
            if self._should_warm_up_model():
                self.model_runner.warming_up_model()
            self._recorder.lap("compile")
            with connectors.none_yet():
                super().initialize_from_config(self._capacity)
            self._recorder.lap("bind at capacity")
            decision = self._measure(cache)
            self._recorder.lap("decision")
            if decision.blocks < _LEAST_BLOCKS:
                raise DoesNotFit(self._why_nothing_fits(decision, cache.layout.block_bytes))
        self._recorder.finish("sized")
        return decision.blocks * cache.layout.block_bytes

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Commit what the engine planned, and bind views of exactly that."""
        if self._cache is None:
            super().initialize_from_config(kv_cache_config)
            return
        self._recorder.lap("engine core plans the blocks")
        with self._recorder.refusals(), self._tenant.leaving_on_error():
            self._commit(kv_cache_config, self._cache)
            self._tenant.committed()
        self._recorder.lap("bind")
        self._recorder.committed(kv_cache_config.kv_cache_groups, self._cache)
        self._recorder.finish("started")

    def shutdown(self) -> None:
        self._tenant.leave()
        super().shutdown()

    def _commit(self, kv_cache_config: Any, cache: KVCache) -> None:
        self._adopt(kv_cache_config)
        logger.info("ullage commits %d blocks.", kv_cache_config.num_blocks)
        if cache.commit(kv_cache_config.num_blocks) != kv_cache_config.num_blocks:
            raise Unsupported(
                f"The engine plans {kv_cache_config.num_blocks} blocks, and there are addresses "
                f"for {cache.layout.capacity_blocks}. Unset ULLAGE to start as stock does."
            )
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
        total_bytes = self._observer.take().total_bytes
        memory = CpuMemory()
        capacity = placement.capacity_config(self, self._rules, total_bytes)
        layout = placement.layout_of(
            capacity, granularity_bytes=memory.capabilities.granularity_bytes
        )
        self._observer.check_addresses(layout.size_bytes)
        self._cache = KVCache(memory, layout, available=self._observer.available_bytes)
        self._capacity = capacity
        return self._cache

    def _measure(self, cache: KVCache) -> Decision:
        # Nothing may address blocks that have no memory yet.
        self.model_runner.kv_cache_config.num_blocks = cache.committed_blocks
        sizes = warm_up.Sizes(
            max_model_len=self.model_config.max_model_len,
            capacity_tokens=cache.layout.capacity_blocks * self.cache_config.block_size,
        )
        warmed = warm_up.run(
            self.model_runner,
            sizes=sizes,
            prompt_logprobs=self._settings.prompt_logprobs,
            available=lambda: self._available_in_use(sizes),
            lap=self._recorder.lap,
        )
        compiled.write_out(self._started_s)
        self._recorder.lap("compiled files written")
        self._watch_usual_work(sizes)
        self._recorder.lap("usual work")
        logger.info("ullage warm-up: %s.", warmed.text())
        return self._decide(cache, warmed)

    def _decide(self, cache: KVCache, warmed: warm_up.WarmUp) -> Decision:
        taken = self._observer.take()
        alike = tenant.alike(self.vllm_config, self._settings, cache.layout.block_bytes)
        decision = decide(
            snapshot=taken,
            worker_pid=os.getpid(),
            layout=cache.layout,
            committed_bytes=cache.physical_bytes,
            transient_bytes=warmed.transient_bytes,
            later_bytes=later_bytes(
                self._rules,
                vocabulary=self.model_config.get_vocab_size(),
                max_num_seqs=self.scheduler_config.max_num_seqs,
                grammar_cache_bytes=envs.VLLM_XGRAMMAR_CACHE_MB * MIB,
            )
            + connectors.copied_bytes(self.vllm_config, cache.layout),
            margin_bytes=self._settings.margin_bytes,
            utilization=self._explicit_utilization(),
            heap=malloc.heap(),
            limit_at_start_bytes=self._observer.limit_at_start_bytes,
            promise=self._tenant.promise(taken, alike),
        )
        if changed := decision.limit.change():
            logger.info("ullage: %s.", changed)
        logger.info(
            "ullage: %d KV cache blocks fit.\n%s", decision.blocks, ledger_text(decision.ledger)
        )
        self._tenant.decided(decision, taken)
        self._recorder.sized(taken=taken, decision=decision, warmed=warmed)
        return decision

    def _why_nothing_fits(self, decision: Decision, block_bytes: int) -> str:
        return why_nothing_fits(
            decision,
            block_bytes,
            block_tokens=self.cache_config.block_size,
            request_blocks=longest_request_blocks(self, self._rules, block_bytes),
        )

    def _watch_usual_work(self, sizes: warm_up.Sizes) -> None:
        with self._observer.usual_work():
            warm_up.usual_work(self.model_runner, sizes)

    def _available_in_use(self, sizes: warm_up.Sizes) -> int:
        """With room for the file pages that the usual work uses, and not for all that is mapped."""
        self._watch_usual_work(sizes)
        available = self._observer.take().available_bytes
        mappable = self._observer.mappable_bytes()
        return available if mappable is None else min(available, mappable)

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

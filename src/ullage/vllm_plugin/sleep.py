"""Sleep and wake of a CPU worker: its KV cache's memory goes back, addresses and blocks stay.

vLLM 0.32's CPU worker does nothing here, and refuses --enable-sleep-mode.  The engine calls these
methods from `LLM.sleep` and `LLM.wake_up`, which stop its scheduler and empty its prefix cache
first, or from `collective_rpc`, which does neither.  Weights stay where they are, at any level:
they are in the host's memory already, which is where level 1 moves them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from vllm.logger import init_logger
from vllm.v1.worker.cpu_worker import CPUWorker

from ullage.errors import Usage
from ullage.kv.cache import KVCache
from ullage.units import gib
from ullage.vllm_plugin.ranks import ALONE, Ranks
from ullage.vllm_plugin.tenant import Tenant

logger = init_logger("vllm.ullage.worker")


class SleepingCPUWorker(CPUWorker):
    """`_cache` None: stock's cache serves, which cannot sleep."""

    _cache: KVCache | None = None
    _ranks: Ranks = ALONE
    _tenant: Tenant

    def sleep(self, level: int = 1) -> None:
        """One rank after the other, as in `wake_up`.  Raises MemoryRefused on all ranks; then every
        cache is awake, and its blocks may read as zeros."""
        if self._cache is None:
            super().sleep(level)
            return
        released_bytes = self._cache.physical_bytes
        with ExitStack() as undo:
            if not self._cache.asleep:
                undo.callback(self._cache.wake)
            self._ranks.in_turn(self._cache.sleep)
            undo.pop_all()
        self._ranks.first(self._tenant.asleep)
        logger.info("ullage gave back %s of KV cache.", gib(released_bytes))

    def wake_up(self, tags: list[str] | None = None) -> None:
        """One rank after the other, as memory is committed.  Raises OverAvailable, MemoryRefused on
        all ranks; then every cache is asleep as before."""
        if self._cache is None:
            super().wake_up(tags)
        elif tags is None or "kv_cache" in tags:
            with ExitStack() as undo:
                undo.callback(self._tenant.asleep_again)
                self._ranks.first(self._tenant.awake)
                if self._cache.asleep:
                    undo.callback(self._cache.sleep)
                self._ranks.in_turn(self._cache.wake)
                undo.pop_all()
            logger.info("ullage committed %s of KV cache again.", gib(self._cache.physical_bytes))

    def execute_model(self, scheduler_output: Any) -> Any:
        """Raises Usage while the cache is asleep: the step would be SIGSEGV."""
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens and self._cache is not None and self._cache.asleep:
            raise Usage(
                f"The KV cache is asleep, and a step of {tokens} tokens has no memory to write to. "
                "Call wake_up before the next request (LLM.wake_up, or collective_rpc)."
            )
        return super().execute_model(scheduler_output)

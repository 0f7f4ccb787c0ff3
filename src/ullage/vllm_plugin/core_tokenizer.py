"""The engine core's tokenizer, loaded before the KV cache has its size instead of after.

vLLM's engine core sizes the KV cache and then makes its `StructuredOutputManager`, which loads the
tokenizer once more: 20 MiB for 16,384 tokens, 207 MiB for 151,936, as measured.  vLLM keeps loaded
tokenizers (`cached_tokenizer_from_config`), so loading it first costs nothing, and what it takes is
then measured with everything else.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ullage.vllm_plugin.versions import OUR_WORKER

_MARK = "_ullage_wrapped"
_CORE = "vllm.v1.engine.core"


def load_first() -> None:
    """In a process that has the engine core's module: load the tokenizer before the sizing."""
    module = sys.modules.get(_CORE)
    if module is None:
        return
    core: Any = module.EngineCore
    stock = core._initialize_kv_caches
    if getattr(stock, _MARK, False):
        return

    @functools.wraps(stock)
    def initialize_kv_caches(self: Any, vllm_config: Any) -> Any:
        if vllm_config.parallel_config.worker_cls == OUR_WORKER:
            from vllm.tokenizers import cached_tokenizer_from_config

            cached_tokenizer_from_config(model_config=vllm_config.model_config)
        return stock(self, vllm_config)

    setattr(initialize_kv_caches, _MARK, True)
    core._initialize_kv_caches = initialize_kv_caches

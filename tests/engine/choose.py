"""Which worker vLLM's own configuration step ends up with, case by case, as JSON in a file.

One process for all cases: a VllmConfig is made as a start makes it, and no engine is started.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "utilization": {"gpu_memory_utilization": 0.5},
    "explicit size": {"kv_cache_memory_bytes": 1 << 28},
    "explicit blocks": {"num_gpu_blocks_override": 16},
    "pooling": {"runner": "pooling"},
    "two ranks": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
    "two engines": {"data_parallel_size": 2},
    "other worker": {"worker_cls": "vllm.v1.worker.gpu_worker.Worker"},
    "speculation": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_max": 2,
        }
    },
    "offloading": {"kv_offloading_size": 1.0},
    "adapters": {"enable_lora": True},
    "connector": {
        "kv_transfer_config": {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}
    },
    "connector to files": {
        "kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    },
}


class Kept:
    """A filter that lets everything through and remembers the warnings.  vLLM sets its loggers up
    anew with every configuration, which removes handlers and leaves filters."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            self.lines.append(record.getMessage())
        return True


def main() -> None:
    model, result, *names = sys.argv[1:]
    kept = Kept()
    logging.getLogger("vllm.ullage").addFilter(kept)
    answers = {name: choose(model, CASES[name], kept) for name in names or CASES}
    Path(result).write_text(json.dumps(answers))


def choose(model: str, arguments: dict[str, Any], kept: Kept) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs

    kept.lines.clear()
    forget_what_was_said_once()
    try:
        config = EngineArgs(model, max_model_len=512, **arguments).create_engine_config()
    except Exception as error:  # noqa: BLE001 - what a user would see is the result here
        return {"worker": None, "warnings": list(kept.lines), "error": str(error)}
    if config.parallel_config.data_parallel_size > 1:
        # As the core of each of these engines does: it knows of itself only.
        config.parallel_config.reconfigure_for_independent_dp_rank()
        config.__post_init__()
    worker = config.parallel_config.worker_cls
    return {"worker": worker, "warnings": list(kept.lines), "error": None}


def forget_what_was_said_once() -> None:
    import vllm.logger

    for name in ("_print_warning_once", "_print_info_once"):
        cached = getattr(vllm.logger, name, None)
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()

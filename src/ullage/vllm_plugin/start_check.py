"""The stock worker's start-up check, which asks before anything is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ullage.vllm_plugin.versions import EngineRules


@contextmanager
def start_check_disarmed(rules: EngineRules) -> Iterator[None]:
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

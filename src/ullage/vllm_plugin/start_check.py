"""The stock worker's start-up check, which asks before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ullage.vllm_plugin.replaced import replaced
from ullage.vllm_plugin.versions import EngineRules


def start_check_disarmed(rules: EngineRules) -> AbstractContextManager[None]:
    """Let the stock constructor see as much available memory as there is in total.

    It refuses to start where utilization x total exceeds what is free before anything is loaded.
    The exact check comes with the exact number, after the warm-up.
    """
    return replaced(*rules.reading, _generous)


def _generous(stock: Callable[[int], Any]) -> Callable[[int], Any]:
    def reading(node: int) -> Any:
        info = stock(node)
        info.available_memory = info.total_memory
        return info

    return reading

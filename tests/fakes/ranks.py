"""Ranks of one engine as threads of one process, which tell each other what they would send."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ullage.vllm_plugin.ranks import Ranks

T = TypeVar("T")
WITHIN_S = 30  # a rank that is left waiting fails the test


class _ThreadRanks(Ranks):
    def __init__(self, rank: int, told: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank=rank, size=len(told))
        self._told_by = told
        self._barrier = barrier

    def _exchange(self, answer: Any) -> tuple[Any, ...]:
        self._told_by[self.rank] = copy.deepcopy(answer)
        self._barrier.wait(WITHIN_S)
        answers = tuple(copy.deepcopy(each) for each in self._told_by)
        self._barrier.wait(WITHIN_S)
        return answers


def on_ranks(size: int, work: Callable[[Ranks], T]) -> list[T]:
    """What `work` was on each of `size` ranks."""
    told: list[Any] = [None] * size
    barrier = threading.Barrier(size)
    ranks = [_ThreadRanks(rank, told, barrier) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, ranks))

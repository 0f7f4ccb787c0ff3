"""The workers of one engine, agreeing with each other before any of them takes memory.

vLLM asks all its workers at once, and waits for their answers one after the other: a worker that
fails alone would leave the others waiting in a collective.  So whatever one rank meets, all ranks
hear of it in the next exchange, and end with the same error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ullage.errors import EngineFailed, UllageError

T = TypeVar("T")


class Ranks:
    """This process is `rank` of `size`.  Every rank must make the same calls in the same order.

    `group`: a process group of torch that carries Python values (gloo).  A single rank has none,
    and waits for nobody.
    """

    def __init__(self, *, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._group = group
        self._told: Exception | None = None  # within an exchange: it keeps its frames' values
        self._depth = 0

    def gather(self, work: Callable[[], T]) -> tuple[T, ...]:
        """Every rank works; all get every rank's answer, by rank, once the last one is done.

        Where one fails, all raise the error of the first rank that failed: one of ours as it is,
        another as EngineFailed.
        """
        if self.size == 1:
            return (work(),)
        self._depth += 1
        try:
            return self._all(work)
        finally:
            self._depth -= 1
            if not self._depth:
                self._told = None

    def _all(self, work: Callable[[], T]) -> tuple[T, ...]:
        try:
            answer: Any = work()
        except Exception as error:
            if error is not self._told:  # all know it: from an exchange inside `work`
                self._raise_first(self._exchange(_as_ours(error, self.rank)))
            raise
        answers = self._exchange(answer)
        self._raise_first(answers)
        return answers

    def first(self, work: Callable[[], T]) -> T:
        """Rank 0 works, and all get its answer."""
        answers: tuple[Any, ...] = self.gather(lambda: work() if self.rank == 0 else None)
        return answers[0]

    def together(self, work: Callable[[], T]) -> T:
        """Every rank works, and keeps its answer; none goes on before the last one is done."""
        own: list[T] = []
        self.gather(lambda: own.append(work()))
        return own[0]

    def in_turn(self, work: Callable[[], T]) -> T:
        """As `together`, one rank after the other: once one has failed, the next do not begin."""
        own: list[T] = []
        for turn in range(self.size):
            self.gather(partial(_append, own, work if turn == self.rank else None))
        return own[0]

    def _exchange(self, answer: Any) -> tuple[Any, ...]:
        import torch.distributed

        answers: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(answers, answer, group=self._group)
        return tuple(answers)

    def _raise_first(self, answers: tuple[Any, ...]) -> None:
        for answer in answers:
            if isinstance(answer, UllageError):
                self._told = answer
                raise answer


ALONE = Ranks()


def of_the_engine() -> Ranks:
    """pre: vLLM has set its groups up (`init_device`)."""
    from vllm.distributed.parallel_state import get_world_group

    world = get_world_group()
    return Ranks(rank=world.rank_in_group, size=world.world_size, group=world.cpu_group)


def _append(answers: list[T], work: Callable[[], T] | None) -> None:
    if work is not None:
        answers.append(work())


def _as_ours(error: Exception, rank: int) -> UllageError:
    """Without the text of an error that is not ours: it may be of any length, and hold a token."""
    if isinstance(error, UllageError):
        return error
    return EngineFailed(
        f"Rank {rank} failed with {type(error).__name__}. Its own log lines say where and why."
    )

"""What is left of an exchange once it is over.  Ranks are threads; real ones are in conformance."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from fakes.ranks import on_ranks
from ullage.errors import DoesNotFit
from ullage.vllm_plugin.ranks import Ranks


class Large:
    """What a rank made before it heard of the error."""


def test_an_error_that_all_were_told_keeps_nothing_alive_once_it_is_handled():
    def refused() -> None:
        raise DoesNotFit("It is so. Do this.")

    def start(ranks: Ranks) -> Callable[[], Large | None]:
        def work() -> None:
            large = Large()
            made.append(weakref.ref(large))
            ranks.together(refused if ranks.rank == 1 else lambda: None)

        made: list[weakref.ref[Large]] = []
        try:
            ranks.together(work)
        except DoesNotFit:
            held.append(ranks)
        return made[0]

    held: list[Ranks] = []
    left = on_ranks(2, start)
    gc.collect()
    assert len(held) == 2
    assert [each() for each in left] == [None, None]

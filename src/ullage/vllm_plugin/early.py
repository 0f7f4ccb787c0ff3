"""May it fit at all?  Each number is the least that a start takes.  Pure.

Left out are activations, second copies of weights, and what the other processes still take; and
every file page counts as free.  So what is refused here could not have run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from ullage.accounting.ceiling import Ceiling
from ullage.errors import DoesNotFit
from ullage.units import gib, gib_at_least


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The longest request, and its KV cache in all ranks.

    `longest_within`: the tokens, in whole blocks, of the longest one whose KV cache fits into so
    many bytes; 0 where none does.
    """

    max_model_len: int
    kv_bytes: int
    longest_within: Callable[[int], int]


def refuse_if_too_large(
    *, weights_bytes: int, margin_bytes: int, request: Request | None, most: Ceiling
) -> None:
    """`margin_bytes`: what the budget will keep free for certain.  `request` None: not known.

    Raises DoesNotFit.
    """
    left_bytes = most.available_bytes - weights_bytes - margin_bytes
    missing_bytes = (0 if request is None else request.kv_bytes) - left_bytes
    if missing_bytes <= 0:
        return
    longest = 0 if request is None or left_bytes <= 0 else request.longest_within(left_bytes)
    shorter = f"Set --max-model-len to {longest} or less, or raise" if longest else "Raise"
    more_bytes = ceil(missing_bytes / most.share)
    of_request = (
        ""
        if request is None
        else f", the KV cache of one request of {request.max_model_len} tokens "
        f"{gib(request.kv_bytes)}"
    )
    raise DoesNotFit(
        f"The weights take {gib(weights_bytes)}{of_request} and the margin {gib(margin_bytes)}, "
        f"and at most {gib(most.available_bytes)} of {gib(most.total_bytes)} ({most.source}) can "
        f"still be taken. {shorter} the memory limit by {gib_at_least(more_bytes)} or more."
    )

"""Between the layers and their weights: what a model will take, from vLLM itself.

vLLM makes a model's layers first and fills them afterwards.  In between, the layers say what their
weights take in the engine's own types, whatever the files' format, and what they keep of a request;
and the memory of large ones has not been touched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from vllm.logger import init_logger

from ullage.accounting.ceiling import Ceiling, ceiling
from ullage.accounting.exact import limiting
from ullage.budget import default_margin_bytes
from ullage.devices import host
from ullage.devices.base import Reading
from ullage.errors import Unreadable
from ullage.units import align_down, ceil_div
from ullage.vllm_plugin.early import Request, refuse_if_too_large
from ullage.vllm_plugin.ranks import Ranks
from ullage.vllm_plugin.replaced import replaced
from ullage.vllm_plugin.versions import EngineRules

logger = init_logger("vllm.ullage.early")

# A layer may describe its cache from weights that it does not have yet.
_CANNOT_SAY_YET = (AssertionError, AttributeError, LookupError, NotImplementedError, ValueError)


@contextmanager
def refused_early(
    worker: Any,
    rules: EngineRules,
    *,
    margin_bytes: int | None,
    ranks: Ranks,
    room: Callable[[Ceiling], Ceiling],
) -> Iterator[None]:
    """A model that is loaded inside, and could not fit, is refused before its weights are read.

    `room`: what of the most that could be taken is this engine's.  All ranks are refused with the
    same error: raises DoesNotFit.  What cannot be told refuses nothing.
    """
    # Before any rank makes layers: what these touch themselves counts once.
    bounds = ranks.first(lambda: _bounds(margin_bytes, room))
    if bounds is None:
        yield
        return
    with _told_of_layers(rules, lambda model: check(model, worker, rules, ranks, bounds)):
        yield


def check(
    model: Any, worker: Any, rules: EngineRules, ranks: Ranks, bounds: tuple[Ceiling, int]
) -> None:
    """`bounds`: the most that all ranks may take, and their margin.  Raises DoesNotFit."""
    most, margin_bytes = bounds
    refuse_if_too_large(
        weights_bytes=sum(ranks.gather(lambda: weights_bytes(model))),
        margin_bytes=margin_bytes,
        request=_of_all(ranks, ranks.together(lambda: longest_request(worker, rules))),
        most=most,
    )


def _of_all(ranks: Ranks, own: Request | None) -> Request | None:
    """The same request, with its KV cache in all ranks.  Each keeps another part of it; of what is
    left, each is given as much as its part is."""
    every = ranks.gather(lambda: None if own is None else own.kv_bytes)
    kv_bytes = sum(each or 0 for each in every)
    if own is None or None in every:
        return None

    def longest_within(size_bytes: int) -> int:
        part_bytes = size_bytes * own.kv_bytes // kv_bytes
        return min(
            ranks.gather(
                lambda: own.longest_within(part_bytes) if own.kv_bytes else own.max_model_len
            )
        )

    return Request(
        max_model_len=own.max_model_len, kv_bytes=kv_bytes, longest_within=longest_within
    )


def weights_bytes(model: Any) -> int:
    """Memory of all parameters, each once; without those that get theirs while they are loaded
    (on the device "meta")."""
    storages = {
        storage.data_ptr(): storage.nbytes()
        for storage in (each.untyped_storage() for each in model.parameters() if not each.is_meta)
    }
    return sum(storages.values())


def longest_request(worker: Any, rules: EngineRules) -> Request | None:
    """By the engine's own rules.  None where max_model_len is left to it, or it cannot say yet."""
    config = worker.vllm_config
    if config.model_config.original_max_model_len == -1:
        return None
    planner = importlib.import_module(rules.planner)
    try:
        specs = dict(worker.get_kv_cache_spec())
        kv_bytes = planner.max_memory_usage_bytes(config, specs.values())
    except _CANNOT_SAY_YET as error:
        logger.debug("ullage cannot say before the weights load what a request takes: %r", error)
        return None

    def longest_within(size_bytes: int) -> int:
        tokens = planner.estimate_max_model_len(config, specs, size_bytes)
        return align_down(tokens, config.cache_config.block_size)

    return Request(
        max_model_len=config.model_config.max_model_len,
        kv_bytes=kv_bytes,
        longest_within=longest_within,
    )


def longest_request_blocks(worker: Any, rules: EngineRules, block_bytes: int) -> int:
    """Blocks that it keeps; 1, the least, where it is not known."""
    request = longest_request(worker, rules)
    return 1 if request is None else max(1, ceil_div(request.kv_bytes, block_bytes))


def _bounds(
    margin_bytes: int | None, room: Callable[[Ceiling], Ceiling]
) -> tuple[Ceiling, int] | None:
    try:
        readings = host.read()
        most = ceiling(readings)
        most = None if most is None else room(most)
    except Unreadable as error:
        logger.debug("ullage cannot say before the weights load whether they fit: %s", error)
        return None
    if most is None:
        return None
    return most, _margin_bytes(readings) if margin_bytes is None else margin_bytes


def _margin_bytes(readings: Sequence[Reading]) -> int:
    """As the budget takes it later, of the limit."""
    return default_margin_bytes(limiting(readings).total_bytes or 0)


def _told_of_layers(
    rules: EngineRules, check: Callable[[Any], None]
) -> AbstractContextManager[None]:
    """Have vLLM's loader call `check` with the model that it has made and not filled yet."""

    def telling(stock: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            model = stock(*args, **kwargs)
            check(model)
            return model

        return made

    return replaced(*rules.layers, telling)

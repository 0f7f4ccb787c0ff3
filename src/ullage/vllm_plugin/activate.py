"""What `register` does once it is switched on, in each of the engine's processes."""

from __future__ import annotations

import functools
import multiprocessing
import os
from typing import Any

from vllm.logger import init_logger
from vllm.platforms import current_platform

from ullage import receipts
from ullage.drivers import steady_heap
from ullage.errors import Unsupported
from ullage.vllm_plugin import core_tokenizer, prompt_logprobs, settings, versions
from ullage.vllm_plugin.eligible import memory_nodes, reason_against
from ullage.vllm_plugin.recorder import Recorder

# vLLM configures loggers below its own name only.
logger = init_logger("vllm.ullage")

_MARK = "_ullage_wrapped"


def activate() -> None:
    """Let the platform's configuration step choose our worker where a start can be handled."""
    settings.read(os.environ)  # raises where a value is none, before anything is loaded
    if not _is_started_by_the_engine():
        os.environ[settings.FRONTEND] = str(os.getpid())  # whatever an engine above us left there
        receipts.fix_folder(os.environ)
    engine = versions.installed()
    rules = versions.rules_for(engine)
    if rules is None:
        known = ", ".join(str(row.versions) for row in versions.TABLE)
        _leave(None, f"vLLM {engine} is not in the table of known versions ({known})")
    elif not current_platform.is_cpu():
        _leave(None, f"the platform is {current_platform.device_name}, and only CPU is handled yet")
    else:
        _wrap_configuration(type(current_platform), rules)
        core_tokenizer.load_first()


def fall_back(reason: str) -> None:
    """Say once, in the front end, why stock behaviour stays.  Strict, or with a share, which stock
    would not keep: raise Unsupported instead."""
    own = settings.read(os.environ)
    if own.strict:
        raise Unsupported(
            f"ullage cannot handle this start: {reason}. Unset ULLAGE_STRICT to start as stock "
            "does."
        )
    if own.share is not None:
        raise Unsupported(
            f"ullage cannot handle this start: {reason}, and stock vLLM would not keep to "
            f"ULLAGE_SHARE={own.share}. Unset ULLAGE_SHARE to start as stock does."
        )
    if _is_frontend():
        logger.warning_once("ullage leaves this start to stock vLLM: %s.", reason)


def _is_started_by_the_engine() -> bool:
    """Ray's workers are no children of multiprocessing."""
    return multiprocessing.parent_process() is not None or settings.is_in_ray(os.environ)


def _is_frontend() -> bool:
    return os.environ.get(settings.FRONTEND) == str(os.getpid())


def _wrap_configuration(platform: Any, rules: versions.EngineRules) -> None:
    """Run after the platform's own step, which fills in the worker class.

    vLLM runs that step again, in the engine-core process as well, which may know less: an engine of
    a data-parallel group takes itself for the only one there
    (`reconfigure_for_independent_dp_rank`).  What was left to stock before stays so.
    """
    stock = platform.check_and_update_config.__func__
    if getattr(stock, _MARK, False):
        return

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        worker_before = vllm_config.parallel_config.worker_cls
        stock(cls, vllm_config)
        _name_unknown_switches()
        if worker_before != rules.stock_worker:
            choose_worker(vllm_config, rules)

    setattr(check_and_update_config, _MARK, True)
    platform.check_and_update_config = classmethod(check_and_update_config)


def _name_unknown_switches() -> None:
    """Here, and not in `activate`: vLLM's log is set up only when its configuration is made."""
    unknown = settings.read(os.environ).unknown
    if unknown and _is_frontend():
        logger.warning_once("ullage does not know %s.", ", ".join(unknown))


def choose_worker(vllm_config: Any, rules: versions.EngineRules) -> None:
    """Every process that makes a configuration of its own (the front end, each API server) chooses;
    the engine core is given one in which the choice is made."""
    parallel_config = vllm_config.parallel_config
    if parallel_config.worker_cls == versions.OUR_WORKER:
        return
    reason = reason_against(vllm_config, rules, os.environ, memory_nodes())
    if reason is None:
        parallel_config.worker_cls = versions.OUR_WORKER
        os.environ.setdefault(versions.GRAMMAR_CACHE, str(versions.GRAMMAR_CACHE_MB))
        for name in versions.KERNELS_KEPT:
            os.environ.setdefault(name, str(versions.KERNELS_KEPT_NUMBER))
        # Read by the C library when a process starts: it reaches the workers, not this process.
        os.environ[steady_heap.TUNABLES] = steady_heap.tunables_for_engines(os.environ)
        prompt_logprobs.refuse(allowed=settings.read(os.environ).prompt_logprobs)
    else:
        _leave(None if vllm_config.model_config is None else vllm_config, reason)


def _leave(vllm_config: Any | None, reason: str) -> None:
    """To stock, or refused where that is not allowed.  The front end's receipt says which: there is
    no worker of ours that would write one.  None: what is to start is not known."""
    if not _is_frontend():
        fall_back(reason)
        return
    recorder = _recorder(None if vllm_config is None else vllm_config.model_config.model, reason)
    if vllm_config is not None:
        recorder.flags(vllm_config)
    with recorder.refusals():
        fall_back(reason)
    recorder.finish("stock", reason)


@functools.cache
def _recorder(model: str | None, reason: str) -> Recorder:
    """One for all configurations that a front end makes on its way to one engine."""
    return Recorder(model=model, settings=settings.read(os.environ), warn=logger.warning)

"""A comparison from request to result: every check first, then the starts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from ullage.accounting.exact import limiting
from ullage.compare import machine
from ullage.compare.checkpoint import Checkpoint, read_checkpoint
from ullage.compare.container import UNCONFINED, check_enforced
from ullage.compare.engine import check_plugin, engine_command
from ullage.compare.flags import check_extra, redacted
from ullage.compare.load import Load
from ullage.compare.request import Request
from ullage.compare.result import write_result
from ullage.compare.server import ServerSettings, check_port, inherited_environment
from ullage.compare.starts import (
    STOCK,
    ULLAGE,
    Phase,
    SidePlan,
    Trial,
    run_starts,
    without_starts,
)
from ullage.compare.tune import tune_stock
from ullage.devices import host
from ullage.errors import Usage
from ullage.report.comparison import Comparison, Settings
from ullage.units import gib

MAX_BATCHED_TOKENS: Final = 2048
MAX_SEQUENCES: Final = 1024  # of the load that is chosen here; --concurrency may ask for more


def compare(
    request: Request, phase: Phase, finished: Callable[[Comparison], None] = lambda so_far: None
) -> Comparison:
    """Run every start of every side.

    After each start the comparison so far is in `comparison.json` beside the logs, and `finished`
    is told.  Raises, before anything is started: UnknownModel, Usage, DoesNotFit, NotEnforced,
    EngineFailed.
    """
    trial, where = prepare_trial(request)
    make_output(trial.output)
    comparison = Comparison(
        machine=machine.describe(where),
        versions=machine.versions(),
        settings=_settings(request, trial),
        sides={},
    )
    sides = [STOCK, *_tuned(comparison, request, trial, phase), ULLAGE]
    for done in run_starts(trial, sides, request.starts, phase):
        comparison = dataclasses.replace(comparison, sides=done)
        write_result(comparison, trial.output)
        finished(comparison)
    return comparison


def _tuned(
    comparison: Comparison, request: Request, trial: Trial, phase: Phase
) -> Sequence[SidePlan]:
    """Stock's best by hand, where it is wanted; an interrupt leaves what was tried."""
    if not request.tune_stock:
        return ()

    def so_far(plan: SidePlan) -> None:
        sides = without_starts([STOCK, plan, ULLAGE])
        write_result(dataclasses.replace(comparison, sides=sides), trial.output)

    total_bytes = trial.limit_bytes or limiting(host.read()).total_bytes or 0
    return (tune_stock(trial, total_bytes, phase, so_far),)


def make_output(directory: Path) -> None:
    """Make the directory of the logs.  Raises Usage where logs are in it, or it cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        used = any(directory.iterdir())
    except OSError as error:
        raise Usage(
            f"The directory {directory} cannot be used for logs: {error.strerror}. "
            "Name another one with --output."
        ) from error
    if used:
        raise Usage(
            f"The directory {directory} is not empty. Name another one for logs with --output."
        )


def prepare_trial(request: Request) -> tuple[Trial, str]:
    """Check the request, and settle what the sides share.  Also says where the limit is set."""
    check_extra(request.extra)
    dtype = request.dtype or machine.preferred_dtype()
    checkpoint = read_checkpoint(request.model, dtype)
    limit_bytes = None if request.unconfined else request.memory_bytes
    checkpoint.check_fits(request.memory_bytes)
    load = _load(request, checkpoint)
    if request.port is not None:
        check_port(request.port)
    where = check_place(limit_bytes)
    settings = ServerSettings(
        model=checkpoint.path,
        dtype=dtype,
        compiled=request.compiled,
        max_model_len=request.max_model_len,
        max_num_batched_tokens=max(MAX_BATCHED_TOKENS, load.concurrency),
        max_num_seqs=load.concurrency,
        cpus=cpu_list(os.sched_getaffinity(0)),
        port=request.port,
        extra=request.extra,
    )
    trial = Trial(
        limit_bytes=limit_bytes,
        files=request.files,
        settings=settings,
        load=load,
        checkpoint=checkpoint,
        output=request.output.resolve(),
    )
    return trial, where


def check_place(limit_bytes: int | None) -> str:
    """Check that an engine with ullage's plugin is here and the limit holds; says where it is set.

    Raises EngineFailed, Usage, NotEnforced.
    """
    engine_command(["bench"])
    check_plugin(inherited_environment())
    if limit_bytes is None:
        return UNCONFINED.where
    check_machine(limit_bytes)
    return check_enforced(limit_bytes)


def check_machine(limit_bytes: int) -> None:
    """Raise Usage where the machine, or a group around this process, has less memory.

    The tighter limit would hold then, and not the one that the table names.
    """
    tightest = limiting(host.read())
    total_bytes = tightest.total_bytes
    if total_bytes is None or limit_bytes <= total_bytes:
        return
    where = "this machine's" if tightest.scope == "host" else f"{tightest.source}'s"
    raise Usage(
        f"A limit of {gib(limit_bytes)} is more than {where} {gib(total_bytes)}. "
        f"Use at most --memory {total_bytes >> 20}MiB."
    )


def _load(request: Request, checkpoint: Checkpoint) -> Load:
    """The same load for all sides: as many sequences at once as fill most of the pool."""
    sequence_tokens = request.input_tokens + request.output_tokens
    if sequence_tokens > request.max_model_len:
        raise Usage(
            f"A request of {sequence_tokens} tokens is longer than --max-model-len "
            f"{request.max_model_len}. Lower --input-tokens or --output-tokens."
        )
    concurrency = request.concurrency
    if concurrency is None:
        estimated = checkpoint.concurrency(request.memory_bytes, sequence_tokens)
        concurrency = None if estimated is None else min(estimated, MAX_SEQUENCES)
    if concurrency is None:
        raise Usage(
            "The size of this model's KV cache is not known beforehand. "
            "Say how many requests run at once: --concurrency 32."
        )
    return Load(
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        concurrency=concurrency,
        prompts=request.prompts or concurrency,
    )


def cpu_list(cpus: Iterable[int]) -> str:
    """Processor numbers as the engine takes them: "0-1", or "0,2" where there are gaps."""
    ordered = sorted(cpus)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered))


def _settings(request: Request, trial: Trial) -> Settings:
    return Settings(
        model=request.model_label,
        starts=request.starts,
        memory_bytes=trial.limit_bytes,
        files=trial.files,
        mode="compiled" if trial.settings.compiled else "eager",
        dtype=trial.settings.dtype,
        weights_bytes=trial.checkpoint.weights_bytes,
        kv_token_bytes=trial.checkpoint.kv_token_bytes,
        flags=dataclasses.replace(trial.settings, extra=redacted(trial.settings.extra)).flags(),
        input_tokens=trial.load.input_tokens,
        output_tokens=trial.load.output_tokens,
        concurrency=trial.load.concurrency,
        prompts=trial.load.prompts,
    )


def exit_code(comparison: Comparison) -> int:
    """0: every start of ullage served; 4: no start of any side did; 1: anything between."""
    if comparison.sides["ullage"].served:
        return 0
    started = any(start.started for side in comparison.sides.values() for start in side.starts)
    return 1 if started else 4

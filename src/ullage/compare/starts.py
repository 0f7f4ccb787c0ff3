"""One start of one side, and the order in which the sides take turns."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.compare.checkpoint import Checkpoint
from ullage.compare.container import UNCONFINED, Container, container
from ullage.compare.counters import Counters, Sampler
from ullage.compare.engine_log import kv_tokens, plugin_acted
from ullage.compare.files import FileState, prepare
from ullage.compare.load import Load, apply_load
from ullage.compare.server import (
    Server,
    ServerSettings,
    environment,
    free_port,
    inherited_environment,
    running,
    server_command,
)
from ullage.errors import EngineFailed
from ullage.receipts import SWITCH as RECEIPTS
from ullage.report.comparison import Side, SideName, Start
from ullage.units import gib

Phase = Callable[[str], None]  # told what happens now, in a few words


@dataclass(frozen=True, kw_only=True, slots=True)
class SidePlan:
    """What one side adds to the shared settings."""

    name: SideName
    label: str
    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


STOCK: Final = SidePlan(name="stock", label="stock, default")
ULLAGE: Final = SidePlan(
    name="ullage",
    label="ullage, default",
    # Strict: a fallback to stock would be measured as if it were ullage.
    variables=(("ULLAGE", "1"), ("ULLAGE_STRICT", "1")),
)


NOT_LOADED: Final = "ullage's plugin was not loaded: the log does not say what it committed"


def tuned(flags: tuple[str, ...], notes: tuple[str, ...] = ()) -> SidePlan:
    return SidePlan(name="stock_tuned", label="stock, best by hand", flags=flags, notes=notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Everything that the sides share.  `limit_bytes` is None for a run without a limit."""

    limit_bytes: int | None
    files: FileState
    settings: ServerSettings
    load: Load
    checkpoint: Checkpoint
    output: Path


def run_starts(
    trial: Trial, sides: Sequence[SidePlan], count: int, phase: Phase
) -> Iterator[dict[SideName, Side]]:
    """`count` starts of each side, interleaved, so that a drift of the machine meets all alike.

    A search that found no flags is a side without starts.  Yields what there is, before the first
    start and after each.
    """
    done: dict[SideName, list[Start]] = {side.name: [] for side in sides}
    runnable = [side for side in sides if side.name != "stock_tuned" or side.flags]
    yield _so_far(sides, done)
    for number in range(1, count + 1):
        for side in runnable:
            title = f"{side.label}, start {number} of {count}"
            directory = trial.output / f"{side.name}-{number}"
            done[side.name].append(run_start(trial, side, directory, _titled(phase, title)))
            yield _so_far(sides, done)


def without_starts(sides: Sequence[SidePlan]) -> dict[SideName, Side]:
    """The sides before the first start."""
    return _so_far(sides, {side.name: () for side in sides})


def _so_far(
    sides: Sequence[SidePlan], done: Mapping[SideName, Sequence[Start]]
) -> dict[SideName, Side]:
    return {
        side.name: Side(
            label=side.label, flags=side.flags, starts=tuple(done[side.name]), notes=side.notes
        )
        for side in sides
    }


def _titled(phase: Phase, title: str) -> Phase:
    return lambda text: phase(f"{title}: {text}")


def run_start(trial: Trial, side: SidePlan, directory: Path, phase: Phase) -> Start:
    """Start the engine once, load it, end it.  Logs stay in `directory`."""
    directory.mkdir(parents=True)
    phase(f"making files {trial.files}")
    warm_bytes = prepare(trial.files, trial.checkpoint.path)
    with contextlib.ExitStack() as undo:
        scratch = Path(
            undo.enter_context(
                tempfile.TemporaryDirectory(prefix="ullage-", ignore_cleanup_errors=True)
            )
        )
        inside = undo.enter_context(_limited(trial.limit_bytes))
        sampler = undo.enter_context(Sampler(inside.group))
        start = _serve_and_load(trial, side, inside, scratch, directory, phase)
        phase("ending the server")
        start = dataclasses.replace(start, warm_file_bytes=warm_bytes)
        return _with_counters(start, sampler.counters(), trial.limit_bytes)


@contextlib.contextmanager
def _limited(limit_bytes: int | None) -> Iterator[Container]:
    if limit_bytes is None:
        yield UNCONFINED
    else:
        with container(limit_bytes) as inside:
            yield inside


def _serve_and_load(
    trial: Trial,
    side: SidePlan,
    inside: Container,
    scratch: Path,
    directory: Path,
    phase: Phase,
) -> Start:
    settings = trial.settings
    base = inherited_environment()
    variables = dict(side.variables)
    if side.name == ULLAGE.name:
        variables[RECEIPTS] = str(directory / "receipts")
    env = environment(base, variables, scratch, settings.cpus)
    log = directory / "server.log"
    port = settings.port or free_port()
    command = server_command(settings, side.flags, port)
    with running(inside, command, env, log, port) as server:
        try:
            phase("starting the engine")
            start_s = server.wait_ready()
        except EngineFailed as error:
            return Start(started=False, error=str(error))
        if side.name == ULLAGE.name and not _plugin_acted(log):
            return Start(started=True, error=NOT_LOADED, start_s=round(start_s, 1))
        phase(f"ready after {start_s:.0f} s, under load")
        return _loaded(trial, server, start_s, directory)


def _plugin_acted(log: Path) -> bool:
    with log.open(errors="replace") as lines:
        return plugin_acted(lines)


def _loaded(trial: Trial, server: Server, start_s: float, directory: Path) -> Start:
    with server.log.open(errors="replace") as lines:
        tokens = kv_tokens(lines)
    token_bytes = trial.checkpoint.kv_token_bytes
    env = {**inherited_environment(), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    result = apply_load(trial.load, trial.checkpoint.path, server.port, env, directory)
    ended = server.process.poll() is not None
    measured = dataclasses.asdict(result)
    measured["error"] = server.error() if ended else result.error
    return Start(
        started=True,
        kv_tokens=tokens,
        kv_bytes=tokens * token_bytes if tokens and token_bytes else None,
        start_s=round(start_s, 1),
        **measured,
    )


def _with_counters(start: Start, counters: Counters, limit_bytes: int | None) -> Start:
    error = start.error
    if counters.oom_kills:
        limit = gib(limit_bytes) if limit_bytes is not None else "the machine's memory"
        error = f"{counters.oom_kills} process(es) killed by the kernel at the limit of {limit}"
    return dataclasses.replace(
        start,
        error=error,
        oom_kills=counters.oom_kills,
        peak_unreclaimable_bytes=counters.peak_unreclaimable_bytes,
        limit_hits=counters.limit_hits,
        refaulted_pages=counters.refaulted_pages,
        samples_per_s=counters.samples_per_s,
    )

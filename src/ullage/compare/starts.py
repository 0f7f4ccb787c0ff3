"""One start of one side, and the order in which the sides take turns."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.compare.checkpoint import Checkpoint
from ullage.compare.container import UNCONFINED, Container, container
from ullage.compare.counters import Counters, Sampler
from ullage.compare.engine_log import kv_tokens
from ullage.compare.files import FileState, prepare
from ullage.compare.load import Load, apply_load
from ullage.compare.server import (
    Server,
    ServerSettings,
    environment,
    inherited_environment,
    running,
    server_command,
)
from ullage.errors import EngineFailed
from ullage.report.comparison import Side, SideName, Start
from ullage.units import MIB, gib

KEPT_BYTES: Final = 64 * MIB  # of files that should be cold, before it is worth a word

Phase = Callable[[str], None]  # told what happens now, in a few words


@dataclass(frozen=True, kw_only=True, slots=True)
class SidePlan:
    """What one side adds to the shared settings."""

    name: SideName
    label: str
    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


STOCK: Final = SidePlan(name="stock", label="stock, default")
ULLAGE: Final = SidePlan(
    name="ullage",
    label="ullage, default",
    # Strict: a fallback to stock would be measured as if it were ullage.
    variables=(("ULLAGE", "1"), ("ULLAGE_STRICT", "1")),
)


def tuned(flags: tuple[str, ...]) -> SidePlan:
    return SidePlan(name="stock_tuned", label="stock, best by hand", flags=flags)


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
) -> dict[SideName, Side]:
    """`count` starts of each side, interleaved, so that a drift of the machine meets all alike."""
    done: dict[SideName, list[Start]] = {side.name: [] for side in sides}
    for number in range(1, count + 1):
        for side in sides:
            title = f"{side.label}, start {number} of {count}"
            directory = trial.output / f"{side.name}-{number}"
            done[side.name].append(run_start(trial, side, directory, _titled(phase, title)))
    return {
        side.name: Side(label=side.label, flags=side.flags, starts=tuple(done[side.name]))
        for side in sides
    }


def _titled(phase: Phase, title: str) -> Phase:
    return lambda text: phase(f"{title}: {text}")


def run_start(trial: Trial, side: SidePlan, directory: Path, phase: Phase) -> Start:
    """Start the engine once, load it, end it.  Logs stay in `directory`."""
    directory.mkdir(parents=True)
    phase(f"making files {trial.files}")
    kept_bytes = prepare(trial.files, trial.checkpoint.path)
    if kept_bytes > KEPT_BYTES:
        phase(f"not cold: another process keeps {gib(kept_bytes)} of the files in memory")
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
    env = environment(base, dict(side.variables), scratch, settings.cpus)
    log = directory / "server.log"
    command = server_command(settings, side.flags)
    with running(inside, command, env, log, settings.port) as server:
        try:
            phase("starting the engine")
            start_s = server.wait_ready()
        except EngineFailed as error:
            return Start(started=False, error=str(error))
        phase(f"ready after {start_s:.0f} s, under load")
        return _loaded(trial, server, start_s, directory)


def _loaded(trial: Trial, server: Server, start_s: float, directory: Path) -> Start:
    with server.log.open(errors="replace") as lines:
        tokens = kv_tokens(lines)
    token_bytes = trial.checkpoint.kv_token_bytes
    env = {**inherited_environment(), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    result = apply_load(trial.load, trial.checkpoint.path, server.port, env, directory)
    ended = server.process.poll() is not None
    return Start(
        started=True,
        error=server.error() if ended else None,
        kv_tokens=tokens,
        kv_bytes=tokens * token_bytes if tokens and token_bytes else None,
        start_s=round(start_s, 1),
        **dataclasses.asdict(result),
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

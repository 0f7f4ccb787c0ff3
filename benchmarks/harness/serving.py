"""One engine with the demo model in a container, for as long as a script wants it."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import private_shm
from harness.compiler import CompilerWatch
from ullage.budget import default_margin_bytes
from ullage.compare.container import Container, container
from ullage.compare.counters import Sampler
from ullage.compare.engine_log import kv_tokens, plugin_acted
from ullage.compare.files import FileState, prepare
from ullage.compare.machine import preferred_dtype
from ullage.compare.model import cached_model, demo_shape
from ullage.compare.request import demo_request
from ullage.compare.run import prepare_trial
from ullage.compare.server import (
    Server,
    ServerSettings,
    environment,
    free_port,
    inherited_environment,
    running,
    server_command,
)
from ullage.compare.starts import NOT_LOADED, ULLAGE, Phase, SidePlan, Trial
from ullage.drivers.memory_group import MemoryGroup
from ullage.errors import EngineFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A server that answered; `kv_tokens` and `kv_bytes` are None where the log does not say.

    `compiler` was watched until the server answered.
    """

    server: Server
    group: MemoryGroup
    sampler: Sampler
    compiler: CompilerWatch
    ready_s: float
    kv_tokens: int | None
    kv_bytes: int | None

    @property
    def alive(self) -> bool:
        return self.server.process.poll() is None


def demo_trial(memory_bytes: int, files: FileState, logs: Path) -> tuple[Trial, str]:
    """The demo model with the settings of the main job at `memory_bytes`; and where limits are set.

    Raises what `ullage compare` raises for a machine that cannot run it.
    """
    shape = demo_shape(preferred_dtype(), small=False)
    model = cached_model(shape, lambda _written_bytes: None)
    request = demo_request(shape, model, small=False, memory_bytes=memory_bytes, output=logs)
    return prepare_trial(dataclasses.replace(request, files=files))


def with_more_room(trial: Trial, side: SidePlan) -> tuple[Trial, SidePlan]:
    """Twice the limit, and ullage keeping the additional half free: the same KV cache, as far as
    two starts have the same."""
    assert trial.limit_bytes is not None  # noqa: S101 - demo_trial sets one
    margin_bytes = trial.limit_bytes + default_margin_bytes(trial.limit_bytes)
    variables = (*side.variables, ("ULLAGE_MARGIN", f"{margin_bytes}B"))
    wide = dataclasses.replace(trial, limit_bytes=2 * trial.limit_bytes)
    return wide, dataclasses.replace(side, variables=variables)


def with_requests(trial: Trial, requests: int | None) -> Trial:
    """Another number of requests in the load, fewer than run at once or more; None: as it is."""
    if requests is None:
        return trial
    return dataclasses.replace(trial, load=dataclasses.replace(trial.load, prompts=requests))


@contextlib.contextmanager
def serving(trial: Trial, side: SidePlan, directory: Path, phase: Phase) -> Iterator[Engine]:
    """Start the engine, and end it when the block ends; its log stays in `directory`.

    Raises EngineFailed where it does not become ready, and where ullage's side runs as stock.
    """
    assert trial.limit_bytes is not None  # noqa: S101 - scripts measure limited engines only
    directory.mkdir(parents=True)
    phase(f"making files {trial.files}")
    prepare(trial.files, trial.checkpoint.path)
    with contextlib.ExitStack() as undo:
        inside = undo.enter_context(container(trial.limit_bytes))
        assert inside.group is not None  # noqa: S101 - made with one
        sampler = undo.enter_context(Sampler(inside.group))
        phase("starting the engine")
        log = directory / "server.log"
        server = undo.enter_context(launched(inside, trial.settings, side, log))
        with CompilerWatch(inside.group) as compiler:
            ready_s = server.wait_ready()
        yield _engine(trial, side, server, inside.group, ready_s, sampler, compiler)
        phase("ending the engine")


@contextlib.contextmanager
def launched(
    inside: Container, settings: ServerSettings, side: SidePlan, log: Path
) -> Iterator[Server]:
    """A server in a container that there is, with caches and a /dev/shm of its own; not yet ready.

    When the block ends, so does the server.
    """
    with contextlib.ExitStack() as undo:
        scratch = undo.enter_context(
            tempfile.TemporaryDirectory(prefix="ullage-", ignore_cleanup_errors=True)
        )
        env = environment(
            inherited_environment(), dict(side.variables), Path(scratch), settings.cpus
        )
        port = free_port()
        shm = undo.enter_context(private_shm.own_folder())
        command = private_shm.command(shm, server_command(settings, side.flags, port))
        yield undo.enter_context(running(inside, command, env, log, port))


def _engine(
    trial: Trial,
    side: SidePlan,
    server: Server,
    group: MemoryGroup,
    ready_s: float,
    sampler: Sampler,
    compiler: CompilerWatch,
) -> Engine:
    lines = log_lines(server.log)
    if side.name == ULLAGE.name and not plugin_acted(lines):
        raise EngineFailed(NOT_LOADED)
    tokens = kv_tokens(lines)
    token_bytes = trial.checkpoint.kv_token_bytes
    return Engine(
        server=server,
        group=group,
        sampler=sampler,
        compiler=compiler,
        ready_s=round(ready_s, 1),
        kv_tokens=tokens,
        kv_bytes=tokens * token_bytes if tokens and token_bytes else None,
    )


def log_lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()

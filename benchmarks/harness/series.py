"""Starts of a small engine that share their folders, each in a container of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness import private_shm
from harness.leftovers import Found, Places, look
from ullage.compare.container import container
from ullage.compare.machine import preferred_dtype
from ullage.compare.model import Shape, cached_model
from ullage.compare.run import cpu_list
from ullage.compare.server import (
    Server,
    ServerSettings,
    environment,
    free_port,
    inherited_environment,
    running,
    server_command,
)
from ullage.compare.starts import ULLAGE
from ullage.drivers import sysfs
from ullage.drivers.cgroups import memory_levels
from ullage.drivers.memory_group import MemoryGroup
from ullage.units import GIB

LIMIT_BYTES: Final = 2 * GIB
GONE_WITHIN_S: Final = 5.0
POLL_S: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The same for all starts."""

    settings: ServerSettings
    environment: Mapping[str, str]
    places: Places
    groups_below: tuple[Path, ...]
    logs: Path

    def look(self) -> Found:
        return look(self.places, self.groups_below)


def small_settings() -> ServerSettings:
    """Of a model that loads in a moment, so that the starts are what takes the time."""
    dtype = preferred_dtype()
    shape = Shape(
        dtype=dtype,
        layers=2,
        hidden=256,
        intermediate=512,
        heads=4,
        kv_heads=2,
        head_dim=64,
        vocabulary=16_384,
    )
    return ServerSettings(
        model=cached_model(shape, lambda _written_bytes: None),
        dtype=dtype,
        compiled=False,
        max_model_len=512,
        max_num_batched_tokens=512,
        max_num_seqs=16,
        cpus=cpu_list(os.sched_getaffinity(0)),
        port=None,
        extra=(),
    )


@contextlib.contextmanager
def series_below(logs: Path) -> Iterator[Series]:
    """Folders for one call, gone afterwards with all that the engines left in them."""
    settings = small_settings()
    logs.mkdir(parents=True)
    with contextlib.ExitStack() as undo:
        scratch = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="ullage-")))
        places = Places.below(scratch, Path(undo.enter_context(private_shm.own_folder())))
        caches = scratch / "caches"
        caches.mkdir()
        yield Series(
            settings=settings,
            environment={
                **environment(
                    inherited_environment(), dict(ULLAGE.variables), caches, settings.cpus
                ),
                "TMPDIR": str(places.tmp),
                "XDG_RUNTIME_DIR": str(places.runtime),
                "XDG_STATE_HOME": str(places.state),
            },
            places=places,
            groups_below=tuple(Path(level.directory) for level in memory_levels()),
            logs=logs,
        )


@contextlib.contextmanager
def started(series: Series, name: str) -> Iterator[tuple[MemoryGroup, Server]]:
    """One start, with the folders of the series."""
    port = free_port()
    program = server_command(series.settings, (), port)
    command = private_shm.command(str(series.places.shm), program)
    log = series.logs / f"{name}.log"
    with container(LIMIT_BYTES) as inside:
        assert inside.group is not None  # noqa: S101 - made with one
        with running(inside, command, series.environment, log, port) as server:
            yield inside.group, server


def wait(server: Server, seconds: float) -> bool:
    """True where the engine ended by itself meanwhile."""
    try:
        server.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def kill_all(group: MemoryGroup, server: Server) -> list[str]:
    """SIGKILL for every process of the group; the names of those that stay in it."""
    ends_s = time.monotonic() + GONE_WITHIN_S
    server.process.kill()  # at the very beginning it is not in the group yet
    while (pids := group.pids()) and time.monotonic() < ends_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    server.process.wait()
    names = (sysfs.read_optional(f"/proc/{pid}/comm") for pid in group.pids())
    return [name.strip() for name in names if name is not None]

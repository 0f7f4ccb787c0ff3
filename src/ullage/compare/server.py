"""One start of the engine's own server: command, environment, readiness, end."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from ullage.compare.container import Container
from ullage.compare.engine import engine_command
from ullage.compare.engine_log import error_line
from ullage.errors import EngineFailed, Usage
from ullage.receipts import SWITCH as RECEIPTS

HOST: Final = "127.0.0.1"
SERVED_NAME: Final = "demo"
READY_WITHIN_S: Final = 900.0
STOP_WITHIN_S: Final = 20.0
_POLL_S: Final = 0.2
_OWN: Final = ("ULLAGE", "VLLM_")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What is the same on all sides.  `port` None: a free one for each start."""

    model: Path
    dtype: str
    compiled: bool
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    cpus: str  # as VLLM_CPU_OMP_THREADS_BIND takes them: "0-1"
    port: int | None
    extra: tuple[str, ...]

    def flags(self) -> tuple[str, ...]:
        """The arguments of `vllm serve` that all sides share, without address and names."""
        eager = () if self.compiled else ("--enforce-eager",)
        return (
            *("--dtype", self.dtype),
            *("--max-model-len", str(self.max_model_len)),
            *("--max-num-batched-tokens", str(self.max_num_batched_tokens)),
            *("--max-num-seqs", str(self.max_num_seqs)),
            *eager,
            *self.extra,
        )


def server_command(settings: ServerSettings, side_flags: Sequence[str], port: int) -> list[str]:
    address = ["--host", HOST, "--port", str(port)]
    names = ["--served-model-name", SERVED_NAME]
    serve = ["serve", str(settings.model), *address, *names, *settings.flags(), *side_flags]
    return engine_command(serve)


def environment(
    base: Mapping[str, str], side: Mapping[str, str], scratch: Path, cpus: str
) -> dict[str, str]:
    """The server's environment: no network, fresh caches, all cores, and the side's own variables.

    `base` is an `inherited_environment()`.
    """
    caches = {
        "TMPDIR": scratch / "tmp",
        "XDG_CACHE_HOME": scratch / "cache",
        "VLLM_CACHE_ROOT": scratch / "vllm",
        "TORCHINDUCTOR_CACHE_DIR": scratch / "inductor",
    }
    for directory in caches.values():
        directory.mkdir()
    return {
        **base,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cpus,
        **{name: str(path) for name, path in caches.items()},
        # The user's own folder has room for a hundred.
        **({RECEIPTS: str(scratch / "receipts")} if "ULLAGE" in side else {}),
        **side,
    }


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Raises Usage where something listens on `port`."""
    with socket.socket() as probe:
        # As the server binds: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise Usage(
                f"Port {port} cannot be used: {error.strerror}. Leave --port out to get a free one."
            ) from error


class Server:
    """A started server, ready or not."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process = process
        self.log = log
        self.port = port
        self._started = time.monotonic()

    def wait_ready(self) -> float:
        """Seconds from the start to the first healthy answer.

        Raises EngineFailed with the engine's own error line where it ended before, or took longer
        than `READY_WITHIN_S`.
        """
        while not self._healthy():
            elapsed_s = time.monotonic() - self._started
            if self.process.poll() is not None:
                raise EngineFailed(self.error())
            if elapsed_s > READY_WITHIN_S:
                raise EngineFailed(f"not ready after {elapsed_s:.0f} s")
            time.sleep(_POLL_S)
        return time.monotonic() - self._started

    def error(self) -> str:
        """Why it ended, in the engine's words where it had any."""
        code = self.process.returncode
        with self.log.open(errors="replace") as lines:
            return error_line(lines) or f"ended with exit code {code} and no error line"

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=2.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextlib.contextmanager
def running(
    inside: Container, command: Sequence[str], env: Mapping[str, str], log: Path, port: int
) -> Iterator[Server]:
    """Start `command` inside the container; at the end it and its descendants are gone."""
    with log.open("wb") as output, contextlib.ExitStack() as undo:
        process = subprocess.Popen(
            inside.command(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=env.get("TMPDIR"),
            # Its own session: an interrupt of the terminal reaches us alone, and we end it.
            start_new_session=True,
        )
        undo.callback(stop, process)
        yield Server(process, log, port)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants: ask first, then kill.  An interrupt kills at once."""
    try:
        _end(process, STOP_WITHIN_S)
    except KeyboardInterrupt:
        _end(process, 0.0)
        raise


def _end(process: subprocess.Popen[bytes], terminate_within_s: float) -> None:
    others = _descendants(process)
    for member in others if process.poll() is not None else []:  # nobody else passes it on
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(terminate_within_s)
    _, alive = psutil.wait_procs(others, timeout=terminate_within_s)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.kill()
    psutil.wait_procs(alive, timeout=STOP_WITHIN_S)
    process.wait()


def _descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Descendants, and what is left of the session of a process that has ended itself.

    A process's id is not given away while a session of that id has members (credentials(7)), so a
    living process with the id of one that was reaped leads a session that is not ours.
    """
    try:
        leader = psutil.Process(process.pid)
    except psutil.NoSuchProcess:
        return _session(process.pid)
    if process.returncode is not None:
        return []
    found = dict.fromkeys([*leader.children(recursive=True), *_session(process.pid)])
    return [member for member in found if member != leader]


def _session(leader_pid: int) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader_pid:
                found.append(psutil.Process(pid))
    return found


def inherited_environment() -> dict[str, str]:
    """This process's environment, without variables of ullage and vLLM.

    They size memory (VLLM_CPU_KVCACHE_SPACE), switch plugins off (VLLM_PLUGINS) or lines of the log
    (VLLM_LOGGING_LEVEL): a default side is then not what a default gives.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}

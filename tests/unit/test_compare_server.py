"""Ending a server: it and everything it started, whatever it did before and whatever interrupts."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from ullage.compare.server import stop

SLEEP = "import time; time.sleep(99)"
LEAVES_A_CHILD = "import subprocess; print(subprocess.Popen(['sleep', '99']).pid, flush=True)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(0, flush=True); "
    "time.sleep(99)"
)


@contextlib.contextmanager
def started(code: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def said(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_server_that_ended_and_was_reaped_leaves_no_child() -> None:
    with started(LEAVES_A_CHILD) as process:
        child = said(process)
        process.wait()
        assert lives(child)
        stop(process)
        assert not lives(child)


def test_an_interrupt_while_a_server_is_stopped_kills_it_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = subprocess.Popen.wait
    calls = iter([True])

    def interrupted_once(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if next(calls, False):
            raise KeyboardInterrupt
        return wait(process, timeout)

    with started(STUBBORN) as process:
        said(process)
        monkeypatch.setattr(subprocess.Popen, "wait", interrupted_once)
        with pytest.raises(KeyboardInterrupt):
            stop(process)
        assert process.returncode == -signal.SIGKILL


def test_a_server_is_asked_before_it_is_killed() -> None:
    with started(SLEEP) as process:
        stop(process)
        assert process.returncode == -signal.SIGTERM


def test_stopping_twice_is_no_error() -> None:
    with started(SLEEP) as process:
        stop(process)
        stop(process)
        assert process.returncode == -signal.SIGTERM

"""An interrupt at any moment unwinds once, in order, and leaves no process behind."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

import psutil

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDED_WITHIN_S: Final = 5.0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into KeyboardInterrupt, and ignore later ones.

    A second Ctrl-C would otherwise end the clean-up half-way.  For the main thread only.
    """
    before = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        _end_children()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _ignore()
    raise KeyboardInterrupt


def _ignore() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_children() -> None:
    """End a child whose start was interrupted before anybody had its id."""
    family = psutil.Process().children(recursive=True)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=_ENDED_WITHIN_S)

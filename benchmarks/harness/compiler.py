"""When a compiler runs in a group: an engine compiles kernels while it starts, and says little."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final

from ullage.drivers import sysfs
from ullage.drivers.memory_group import MemoryGroup

INTERVAL_S: Final = 0.1
_NAMES: Final = frozenset({"g++", "c++", "cc1plus", "clang", "clang++", "as", "ld", "collect2"})


class CompilerWatch:
    """Notes every tenth of a second in which a compiler was there, while its block runs."""

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group
        self._seen_s: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compiler-watch", daemon=True)

    def __enter__(self) -> CompilerWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def seconds_between(self, first_s: float, last_s: float) -> float:
        """Of Unix time, to about a tenth for each time that a compiler ran."""
        return round(INTERVAL_S * sum(first_s <= at_s <= last_s for at_s in self._seen_s), 1)

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            if self._compiles():
                self._seen_s.append(time.time())

    def _compiles(self) -> bool:
        try:
            pids = self._group.pids()
        except OSError:  # removed meanwhile
            return False
        names = (sysfs.read_optional(f"/proc/{pid}/comm") for pid in pids)
        return any(name is not None and name.strip() in _NAMES for name in names)

"""Memory groups, version 1 and 2: make, limit, join, read and remove one.

Files and their meaning: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
Every function raises OSError when the kernel refuses.  Sizes are bytes.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ullage.drivers import sysfs
from ullage.drivers.cgroups import Version


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryGroup:
    """One memory group.  `path` is its directory as the caller sees it."""

    version: Version
    path: Path

    def has_controller(self) -> bool:
        """Can a group here be limited?  Version 2 hands the controller down level by level."""
        return self.version == 1 or "memory" in self._control.read_text().split()

    def hand_down_controller(self) -> None:
        """Let the groups beside this one be limited.  EBUSY where their parent has processes."""
        self._control.write_text("+memory")

    def withdraw_controller(self) -> None:
        """Undo `hand_down_controller`, unless another group beside this one relies on it by now."""
        if not any(path.is_dir() for path in self.path.parent.iterdir()):
            self._control.write_text("-memory")

    @property
    def _control(self) -> Path:
        return self.path.parent / "cgroup.subtree_control"

    def create(self) -> None:
        self.path.mkdir()

    def set_limit_bytes(self, limit_bytes: int) -> None:
        """Limit the group's memory, and keep it from swapping where the kernel counts swap."""
        if self.version == 2:
            (self.path / "memory.max").write_text(str(limit_bytes))
            _write_if_there(self.path / "memory.swap.max", "0")
        else:
            (self.path / "memory.limit_in_bytes").write_text(str(limit_bytes))
            # Memory and swap together: the same limit leaves no room for swap.
            _write_if_there(self.path / "memory.memsw.limit_in_bytes", str(limit_bytes))

    def join(self) -> None:
        """Move the calling process into the group."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def pids(self) -> list[int]:
        return [int(word) for word in (self.path / "cgroup.procs").read_text().split()]

    def oom_kills(self) -> int | None:
        """Processes that the kernel killed because of this group's limit; None where not counted.

        Version 2 counts the groups below as well.
        """
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return self._counters(name).get("oom_kill")

    def limit_hits(self) -> int | None:
        """How often the limit was reached: the kernel then reclaimed, mostly file pages."""
        if self.version == 2:
            return self._counters("memory.events").get("max")
        # With equal limits the counter of memory and swap, charged first, is the one that hits.
        hits = self._number("memory.failcnt") + self._number("memory.memsw.failcnt")
        reached = self._number("memory.max_usage_in_bytes") >= self._number("memory.limit_in_bytes")
        # Linux 6.18 was seen to leave failcnt at 0 although the limit was reached: unknown then.
        return None if hits == 0 and reached else hits

    def _number(self, name: str) -> int:
        """A version 1 counter; 0 where the kernel has no such file (swap is not accounted)."""
        return sysfs.read_number(str(self.path / name)) or 0

    def _counters(self, name: str) -> dict[str, int]:
        return sysfs.read_counters(str(self.path / name))

    def remove(self) -> None:
        """Remove the directory.  EBUSY while a process is in it."""
        with contextlib.suppress(FileNotFoundError):
            self.path.rmdir()


def _write_if_there(path: Path, text: str) -> None:
    if path.is_file():
        path.write_text(text)

"""A memory limit around a program, as a container sets it, and gone without a trace afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from ullage.drivers.cgroups import LIMIT_FILE, Level, memory_levels
from ullage.drivers.memory_group import MemoryGroup
from ullage.errors import NotEnforced, Unreadable
from ullage.units import gib

EMPTY_WITHIN_S: Final = 5.0
TERMINATE_WITHIN_S: Final = 3.0
REMOVED_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A limited group that programs can be started in.  `group` is None where nothing is limited.

    `where` says in words which group it was made below.
    """

    group: MemoryGroup | None
    mount_point: str
    where: str

    def command(self, program: Sequence[str]) -> list[str]:
        """The argument list that runs `program` inside."""
        if self.group is None:
            return list(program)
        place = [str(self.group.version), str(self.group.path), self.mount_point]
        return [sys.executable, "-P", "-m", "ullage.compare.enter", *place, *program]


UNCONFINED: Final = Container(group=None, mount_point="", where="no group: the limit is not set")


@contextlib.contextmanager
def container(limit_bytes: int) -> Iterator[Container]:
    """A fresh group with `limit_bytes`; at the end its processes are ended and it is removed.

    Raises NotEnforced where this machine or this user cannot set such a limit.
    """
    levels = memory_levels()
    if not levels:
        raise _not_enforced(limit_bytes, "no memory controller is mounted")
    with contextlib.ExitStack() as undo:
        parent, group = _create(levels, limit_bytes, undo)
        # The outermost visible level is where the hierarchy is mounted.
        inside = Container(
            group=group,
            mount_point=levels[-1].directory,
            where=f"cgroup v{group.version}, below group {parent.group}",
        )
        _check(inside, limit_bytes)
        yield inside


def check_enforced(limit_bytes: int) -> str:
    """Make and remove a group with `limit_bytes`, and say where it was.  Raises NotEnforced."""
    with container(limit_bytes) as inside:
        return inside.where


def _create(
    levels: Sequence[Level], limit_bytes: int, undo: contextlib.ExitStack
) -> tuple[Level, MemoryGroup]:
    """Below the caller's own group where that is possible, else further out.

    Version 2 allows no processes beside child groups, so there mostly an outer one is taken.
    """
    name = f"ullage-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    refusals = []
    for level in levels:
        group = MemoryGroup(version=level.version, path=Path(level.directory) / name)
        try:
            _make(group, limit_bytes, undo)
        except OSError as error:
            refusals.append(f"{level.group}: {errno.errorcode.get(error.errno or 0, error)}")
            _remove(group)
        else:
            return level, group
    raise _no_group(limit_bytes, refusals)


def _make(group: MemoryGroup, limit_bytes: int, undo: contextlib.ExitStack) -> None:
    """Each undo is registered before its step: an interrupt may come between."""
    if not group.has_controller():
        undo.callback(_withdraw, group)
        group.hand_down_controller()
    undo.callback(_remove, group)
    group.create()
    group.set_limit_bytes(limit_bytes)


def _withdraw(group: MemoryGroup) -> None:
    with contextlib.suppress(OSError):  # the parent is as it was, or is needed by others by now
        group.withdraw_controller()


def _no_group(limit_bytes: int, refusals: Sequence[str]) -> NotEnforced:
    """EBUSY has a reason and a way out of its own (cgroup-v2.rst, "No Internal Process
    Constraint"): a container's root group, for one, has the container's processes in it."""
    reason = f"no group can be made ({'; '.join(refusals)})"
    if not any(refusal.endswith(": EBUSY") for refusal in refusals):
        return _not_enforced(limit_bytes, reason)
    return NotEnforced(
        f"A limit of {gib(limit_bytes)} cannot be enforced here: {reason}, because a group with "
        "processes of its own takes no limited group below it. Start the container with "
        "--cgroupns=host, run under `systemd-run --scope -p Delegate=yes`, or add --unconfined."
    )


def _check(inside: Container, limit_bytes: int) -> None:
    """Run a small program inside, and see that the limit is what it finds at its root."""
    assert inside.group is not None  # noqa: S101 - made with one
    file = Path(inside.mount_point) / LIMIT_FILE[inside.group.version]
    seen = subprocess.run(
        inside.command(["cat", str(file)]),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if seen.returncode != 0:
        raise _not_enforced(limit_bytes, seen.stderr.strip().rpartition("\n")[2])
    if not seen.stdout.strip().isdigit() or int(seen.stdout) > limit_bytes:
        raise _not_enforced(limit_bytes, f"a program inside reads {seen.stdout.strip()}")


def _not_enforced(limit_bytes: int, reason: str) -> NotEnforced:
    return NotEnforced(
        f"A limit of {gib(limit_bytes)} cannot be enforced here: {reason}. "
        "Run as root, or add --unconfined to compare without a limit."
    )


def _remove(group: MemoryGroup) -> None:
    """Wait for the group to empty, end what is left by process id, and remove it.

    An interrupt ends the waiting, not the removal.  Raises Unreadable where it stays busy.
    """
    if not group.path.is_dir():
        return
    try:
        _wait_empty(group, EMPTY_WITHIN_S)
        _end_and_remove(group, TERMINATE_WITHIN_S)
    except KeyboardInterrupt:
        _end_and_remove(group, 0.0)
        raise


def _end_and_remove(group: MemoryGroup, terminate_within_s: float) -> None:
    """A process can still be on its way in, and an emptied group stays busy for a moment while its
    last process is torn down: so ending and removing are tried in turns."""
    began = time.monotonic()
    while True:
        elapsed_s = time.monotonic() - began
        _signal(group, signal.SIGTERM if elapsed_s < terminate_within_s else signal.SIGKILL)
        try:
            group.remove()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            if elapsed_s > REMOVED_WITHIN_S:
                raise _still_busy(group) from error
            time.sleep(_POLL_S)
        else:
            return


def _still_busy(group: MemoryGroup) -> Unreadable:
    return Unreadable(
        f"The memory group {group.path} is still busy {REMOVED_WITHIN_S:.0f} s after its processes "
        f"{_pids(group)} were to end. Once they have, remove it: rmdir {group.path}."
    )


def _wait_empty(group: MemoryGroup, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _pids(group) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _pids(group: MemoryGroup) -> list[int]:
    try:
        return group.pids()
    except OSError:  # somebody else removed it
        return []


def _signal(group: MemoryGroup, number: signal.Signals) -> None:
    for pid in _pids(group):
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).send_signal(number)

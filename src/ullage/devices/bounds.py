"""What may still be mapped, whatever memory there is: limits of the process, and overcommit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ullage.devices.base import Reading
from ullage.drivers import procfs

ADDRESS_SPACE: Final = "RLIMIT_AS"

# getrlimit(2): RLIMIT_AS counts every mapping, also one without access; RLIMIT_DATA, since Linux
# 4.7, the private writable ones.  By name in /proc/PID/limits, and what counts against it.
_COUNTED: Final[Mapping[str, tuple[str, str]]] = {
    "Max address space": (ADDRESS_SPACE, "VmSize"),
    "Max data size": ("RLIMIT_DATA", "VmData"),
}
_STRICT: Final = 2


def process_limits_bytes(*, root: Path) -> Mapping[str, int]:
    """Limits that this process has on what it maps, by the name that the kernel gives them."""
    limits = procfs.limits_bytes(root=root)
    return {name: limits[name] for name in _COUNTED if name in limits}


def read_process(limits: Mapping[str, int], *, root: Path) -> Iterator[Reading]:
    """One reading a limit; none where there is no limit."""
    sizes = procfs.status(root=root) if limits else {}
    for name, limit_bytes in limits.items():
        source, counter = _COUNTED[name]
        yield Reading(
            source=source,
            scope="process",
            total_bytes=limit_bytes,
            used_bytes=sizes.get(counter),
        )


def promises_are_bounded(*, root: Path) -> bool:
    """Does the kernel refuse to promise more than CommitLimit?  In its modes 0 and 1 it does not.

    Source: Documentation/mm/overcommit-accounting.rst.
    """
    return procfs.overcommit_mode(root=root) == _STRICT


def read_commit(*, root: Path) -> Reading:
    """What the kernel has promised to all processes, used or not, of what it may promise."""
    sizes = procfs.meminfo(root=root)
    return Reading(
        source="overcommit",
        scope="commit",
        total_bytes=sizes.get("CommitLimit"),
        used_bytes=sizes.get("Committed_AS"),
    )

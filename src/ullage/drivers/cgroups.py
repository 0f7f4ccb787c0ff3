"""Which memory cgroup this process is in, and every ancestor that is visible from here.

Sources: cgroups(7), proc_pid_cgroup(5), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ullage.drivers import sysfs
from ullage.errors import Unreadable

Version = Literal[1, 2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One memory cgroup: its name in the hierarchy, and its directory as the kernel names it."""

    version: Version
    group: str  # "/kubepods.slice/pod1"; "/" is the root, of the machine or of a namespace
    directory: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    group: str  # the group that the mount shows as its root
    directory: str


DEFAULT_DIRECTORY: Final[dict[Version, str]] = {1: "/sys/fs/cgroup/memory", 2: "/sys/fs/cgroup"}
LIMIT_FILE: Final[dict[Version, str]] = {1: "memory.limit_in_bytes", 2: "memory.max"}


def memory_levels(*, root: Path = sysfs.REAL_ROOT) -> tuple[Level, ...]:
    """The own memory cgroup first, then each visible ancestor.  Empty without memory cgroups.

    Limits of all of them apply at once.  A level is listed whether or not it has memory files:
    the own group may have none (the controller is enabled further up), and neither has the
    root of a v2 hierarchy.  Raises Unreadable where the own group cannot be named.
    """
    own = _own_group(sysfs.read_text("/proc/self/cgroup", root=root) or "")
    if own is None:
        return _unnamed_levels(root)
    version, group = own
    mount = _mount_of(version, group, root)
    return tuple(
        Level(version=version, group=ancestor, directory=_join(mount.directory, below_mount))
        for ancestor, below_mount in _ancestors(group, mount)
    )


def identity(level: Level, *, root: Path = sysfs.REAL_ROOT) -> str | None:
    """Names the group the same from inside and outside its namespaces; None where it is gone.

    A group has one inode, in every mount of its hierarchy, and its name depends on who asks.
    """
    try:
        status = sysfs.below(root, level.directory).stat()
    except OSError:
        return None
    return f"cgroup{level.version}:{status.st_dev}:{status.st_ino}"


def _own_group(text: str) -> tuple[Version, str] | None:
    """The line of the hierarchy that carries memory.

    In hybrid mode "0::" is there too, without the memory controller.
    """
    unified = None
    for line in text.splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            return 1, group
        if not controllers:
            unified = group
    return None if unified is None else (2, unified)


def _unnamed_levels(root: Path) -> tuple[Level, ...]:
    """Without /proc/self/cgroup: what a container mounts at the usual place is its own group."""
    for version, directory in DEFAULT_DIRECTORY.items():
        if sysfs.read_optional(f"{directory}/{LIMIT_FILE[version]}", root=root) is not None:
            return (Level(version=version, group="/", directory=directory),)
    return ()


def _mount_of(version: Version, group: str, root: Path) -> Mount:
    """The mount that shows `group`, and the most of its ancestors."""
    text = sysfs.read_text("/proc/self/mountinfo", root=root) or ""
    mounts = list(_mounts(version, text))
    showing = [mount for mount in mounts if _shows(mount, group)]
    if showing:
        return min(showing, key=lambda mount: len(mount.group))
    for mount in mounts:
        if mount.group.startswith("/.."):
            raise Unreadable(
                f"The cgroup mount {mount.directory} starts above this cgroup namespace "
                f"({mount.group}), so the own group and its limit cannot be found. "
                "Mount the cgroup file system again inside the namespace."
            )
    return Mount(group="/", directory=DEFAULT_DIRECTORY[version])


def _shows(mount: Mount, group: str) -> bool:
    return mount.group == "/" or group == mount.group or group.startswith(f"{mount.group}/")


def _mounts(version: Version, text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if version == 2 and kind[0] == "cgroup2":
            yield Mount(group=_unescaped(place[3]), directory=_unescaped(place[4]))
        if version == 1 and kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield Mount(group=_unescaped(place[3]), directory=_unescaped(place[4]))


def _unescaped(field: str) -> str:
    r"""mountinfo writes a space as \040."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def _ancestors(group: str, mount: Mount) -> Iterator[tuple[str, str]]:
    """(name, path below the mount), from `group` up to the mount's root."""
    relative = group.removeprefix(mount.group.rstrip("/")).strip("/")
    parts = relative.split("/") if relative else []
    for depth in range(len(parts), -1, -1):
        below_mount = "/".join(parts[:depth])
        yield _join(mount.group, below_mount), below_mount


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}" if name else directory

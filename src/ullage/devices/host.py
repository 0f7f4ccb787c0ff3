"""The host's memory: everything that bounds what this process may take, and single processes.

Everything is read below `root`, so that another machine's tree can stand in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ullage.devices import bounds, groups, machine
from ullage.devices.base import Device, ProcessReading, Reading
from ullage.drivers import cgroups, procfs, sysfs
from ullage.drivers.cgroups import Level


def find(*, root: Path = sysfs.REAL_ROOT) -> Sequence[Device]:
    """The one host, named by its processor."""
    cpuinfo = sysfs.read_optional("/proc/cpuinfo", root=root) or ""
    names = [
        line.partition(":")[2].strip() for line in cpuinfo.splitlines() if "model name" in line
    ]
    return [Device(platform="host", index=0, name=names[0] if names else "host")]


def read(device: Device | None = None, *, root: Path = sysfs.REAL_ROOT) -> Sequence[Reading]:
    """meminfo, the own memory cgroup, its visible ancestors, and whatever else bounds this process.

    That is the NUMA nodes that it may use, where it may not use all; its limits on what it maps,
    where it has any; and what the kernel may promise, where it keeps count.  A level without memory
    files is left out.  Raises Unreadable where the own cgroup cannot be named, or /proc/self/cgroup
    is refused: a limit that cannot be seen may still kill.
    """
    return read_at(places(root=root), root=root)


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where a process is read: what does not move while it runs."""

    levels: tuple[Level, ...]
    nodes: tuple[int, ...]
    limits_bytes: Mapping[str, int]
    promises_are_bounded: bool


def places(*, root: Path = sysfs.REAL_ROOT) -> Places:
    """Raises Unreadable as `read` does."""
    return Places(
        levels=cgroups.memory_levels(root=root),
        nodes=tuple(machine.restricting_nodes(root=root)),
        limits_bytes=bounds.process_limits_bytes(root=root),
        promises_are_bounded=bounds.promises_are_bounded(root=root),
    )


def read_at(
    where: Places, *, root: Path = sysfs.REAL_ROOT, limits_only: bool = False
) -> Sequence[Reading]:
    """`read`, without looking for the places again.

    `limits_only`: what decides nothing is left out, and what is available is the same.
    """
    groups_here = (
        groups.read_level(level, root=root, limits_only=limits_only) for level in where.levels
    )
    return [
        machine.read_meminfo(root=root, limits_only=limits_only),
        *([machine.read_nodes(where.nodes, root=root)] if where.nodes else []),
        *(reading for reading in groups_here if reading is not None),
        *bounds.read_process(where.limits_bytes, root=root),
        *([bounds.read_commit(root=root)] if where.promises_are_bounded else []),
    ]


def identities(*, root: Path = sysfs.REAL_ROOT) -> dict[str, str]:
    """The sources of `read`, each with a name for what it limits: the same in every namespace."""
    named = (
        (level, cgroups.identity(level, root=root)) for level in cgroups.memory_levels(root=root)
    )
    named_groups = {groups.source(level): name for level, name in named if name is not None}
    return {"meminfo": "host", **named_groups}


def held_bytes(pids: Iterable[int]) -> int | None:
    """Anonymous memory and shmem of the processes; None where one cannot be read, or none is."""
    sizes = [(each.anon_bytes, each.shmem_bytes) for each in read_processes(pids)]
    known = [anon + shmem for anon, shmem in sizes if anon is not None and shmem is not None]
    return sum(known) if sizes and len(known) == len(sizes) else None


def read_group(directory: Path) -> Reading:
    """What the memory cgroup at `directory` (of either version, of this machine) says now.

    Values are None where it has no memory files, or is gone.
    """
    version: cgroups.Version = 2 if (directory / "memory.max").exists() else 1
    level = Level(version=version, group=str(directory), directory=str(directory))
    reading = groups.read_level(level, root=sysfs.REAL_ROOT)
    return reading or Reading(source=groups.source(level), scope="group")


def process_tree(root_pid: int, *, root: Path = sysfs.REAL_ROOT) -> Sequence[int]:
    """`root_pid` and all its living descendants, parents before children; empty if it is gone.

    A process whose parent has ended belongs to another parent by then, and is not found.
    """
    stats = (procfs.stat(pid, root=root) for pid in procfs.pids(root=root))
    living = {stat.pid: stat.ppid for stat in stats if stat is not None and stat.state != "Z"}
    tree = [root_pid] if root_pid in living else []
    for parent in tree:  # grows while it is walked
        tree.extend(pid for pid, ppid in living.items() if ppid == parent)
    return tree


def read_processes(
    pids: Iterable[int], *, root: Path = sysfs.REAL_ROOT
) -> Sequence[ProcessReading]:
    """The memory of each process; one that has ended is left out."""
    readings = (_read_process(pid, root) for pid in pids)
    return [reading for reading in readings if reading is not None]


def forget_file_references(pids: Iterable[int]) -> None:
    """Begin a period for `referenced_file_bytes`.  Raises Unreadable where a process is refused."""
    for pid in pids:
        procfs.forget_file_references(pid)


def referenced_file_bytes(pids: Iterable[int], *, root: Path = sysfs.REAL_ROOT) -> int | None:
    """Mapped file pages that the processes touched in the period.

    Processes of one engine run the same code: of a program's or a library's code, the most that one
    of them touched counts.  Data counts for each, since two may use different parts of one file.
    None where one cannot be read; one that has ended counts nothing.
    """
    data_bytes = 0
    code_bytes: dict[tuple[str, int], int] = {}
    for pid in pids:
        if procfs.stat(pid, root=root) is None:
            continue
        files = procfs.referenced_files(pid, root=root)
        if files is None:
            return None
        data_bytes += sum(file.referenced_bytes for file in files if not file.is_code)
        for key, size_bytes in _code_bytes(files).items():
            code_bytes[key] = max(size_bytes, code_bytes.get(key, 0))
    return data_bytes + sum(code_bytes.values())


def _code_bytes(files: Sequence[procfs.ReferencedFile]) -> dict[tuple[str, int], int]:
    """By file, since one may have several mappings with code."""
    sizes: dict[tuple[str, int], int] = {}
    for file in files:
        if file.is_code:
            key = (file.device, file.inode)
            sizes[key] = sizes.get(key, 0) + file.referenced_bytes
    return sizes


def _read_process(pid: int, root: Path) -> ProcessReading | None:
    rollup = procfs.smaps_rollup(pid, root=root)
    status = procfs.status(pid, root=root)
    stat = procfs.stat(pid, root=root)  # last, so that it tells whether the process has ended
    if stat is None or stat.state == "Z":
        return None
    source: Literal["smaps_rollup", "status"] | None
    if {"Pss_Anon", "Pss_Shmem", "Pss_File"} <= rollup.keys():  # since Linux 5.9
        source = "smaps_rollup"
        anon, shmem, file = rollup["Pss_Anon"], rollup["Pss_Shmem"], rollup["Pss_File"]
    elif {"RssAnon", "RssShmem", "RssFile"} <= status.keys():
        source = "status"
        anon, shmem, file = status["RssAnon"], status["RssShmem"], status["RssFile"]
    else:
        source, anon, shmem, file = None, None, None, None
    return ProcessReading(
        pid=pid,
        ppid=stat.ppid,
        name=stat.name,
        start_time_ticks=stat.start_time_ticks,
        anon_bytes=anon,
        shmem_bytes=shmem,
        file_bytes=file,
        source=source,
    )

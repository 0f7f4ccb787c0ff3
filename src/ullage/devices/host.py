"""The host's memory: /proc/meminfo, each visible memory cgroup, and single processes.

Everything is read below `root`, so that another machine's tree can stand in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from ullage.devices.base import Device, MemoryParts, ProcessReading, Reading
from ullage.drivers import cgroups, procfs, sysfs
from ullage.drivers.cgroups import Level

# v1 writes "no limit" as the largest multiple of the page size in 63 bits: 9223372036854771712
# with pages of 4 KiB, less with larger ones.  No machine has 4 EiB.
_NO_LIMIT_BYTES: Final = 1 << 62


def find(*, root: Path = sysfs.REAL_ROOT) -> Sequence[Device]:
    """The one host, named by its processor."""
    cpuinfo = sysfs.read_optional("/proc/cpuinfo", root=root) or ""
    names = [
        line.partition(":")[2].strip() for line in cpuinfo.splitlines() if "model name" in line
    ]
    return [Device(platform="host", index=0, name=names[0] if names else "host")]


def read(device: Device | None = None, *, root: Path = sysfs.REAL_ROOT) -> Sequence[Reading]:
    """meminfo first, then the own memory cgroup, then its visible ancestors.

    A level without memory files is left out.  Raises Unreadable where the own cgroup cannot be
    named, or /proc/self/cgroup is refused: a limit that cannot be seen may still kill.
    """
    levels = (_read_level(level, root) for level in cgroups.memory_levels(root=root))
    return [_read_meminfo(root), *(reading for reading in levels if reading is not None)]


def identities(*, root: Path = sysfs.REAL_ROOT) -> dict[str, str]:
    """The sources of `read`, each with a name for what it limits: the same in every namespace."""
    named = (
        (level, cgroups.identity(level, root=root)) for level in cgroups.memory_levels(root=root)
    )
    groups = {_source(level): name for level, name in named if name is not None}
    return {"meminfo": "host", **groups}


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
    return _read_level(level, sysfs.REAL_ROOT) or Reading(source=_source(level))


def _read_meminfo(root: Path) -> Reading:
    sizes = procfs.meminfo(root=root)
    total, free = sizes.get("MemTotal"), sizes.get("MemFree")
    parts = MemoryParts(
        anon_bytes=sizes.get("AnonPages"),
        shmem_bytes=sizes.get("Shmem"),
        file_bytes=_sum(sizes, "Cached", "Buffers"),
        inactive_file_bytes=sizes.get("Inactive(file)"),
        active_file_bytes=sizes.get("Active(file)"),
        mapped_file_bytes=sizes.get("Mapped"),
        dirty_bytes=sizes.get("Dirty"),
        writeback_bytes=sizes.get("Writeback"),
        unevictable_bytes=sizes.get("Unevictable"),
        kernel_bytes=_sum(sizes, "Slab", "KernelStack", "PageTables", later=("Percpu",)),
        slab_reclaimable_bytes=sizes.get("SReclaimable"),
        available_bytes=sizes.get("MemAvailable"),
    )
    used = None if total is None or free is None else total - free
    return Reading(
        source="meminfo", total_bytes=total, used_bytes=used, free_bytes=free, parts=parts
    )


def _read_level(level: Level, root: Path) -> Reading | None:
    return _read_v2(level, root) if level.version == 2 else _read_v1(level, root)


def _read_v2(level: Level, root: Path) -> Reading | None:
    """Source: Documentation/admin-guide/cgroup-v2.rst."""
    if sysfs.read_text(f"{level.directory}/memory.max", root=root) is None:
        return None
    # Over memory.high processes are slowed down until they hardly run: as good as a limit.
    limits = [
        sysfs.read_limit(f"{level.directory}/{name}", root=root)
        for name in ("memory.max", "memory.high")
    ]
    stat = sysfs.read_counters(f"{level.directory}/memory.stat", root=root)
    parts = MemoryParts(
        anon_bytes=stat.get("anon"),
        shmem_bytes=stat.get("shmem"),
        file_bytes=stat.get("file"),
        inactive_file_bytes=stat.get("inactive_file"),
        active_file_bytes=stat.get("active_file"),
        mapped_file_bytes=stat.get("file_mapped"),
        dirty_bytes=stat.get("file_dirty"),
        writeback_bytes=stat.get("file_writeback"),
        unevictable_bytes=stat.get("unevictable"),
        kernel_bytes=_kernel_v2_bytes(stat),
        slab_reclaimable_bytes=stat.get("slab_reclaimable"),
        file_refaults=stat.get("workingset_refault_file"),
    )
    return Reading(
        source=_source(level),
        total_bytes=min((limit for limit in limits if limit is not None), default=None),
        used_bytes=sysfs.read_number(f"{level.directory}/memory.current", root=root),
        parts=parts,
    )


def _read_v1(level: Level, root: Path) -> Reading | None:
    """Source: Documentation/admin-guide/cgroup-v1/memory.rst.

    Keys without "total_" count the group alone, without the groups below it.
    """
    limit = sysfs.read_limit(f"{level.directory}/memory.limit_in_bytes", root=root)
    if limit is None:
        return None
    stat = sysfs.read_counters(f"{level.directory}/memory.stat", root=root)
    parts = MemoryParts(
        anon_bytes=stat.get("total_rss"),
        shmem_bytes=stat.get("total_shmem"),
        file_bytes=stat.get("total_cache"),
        inactive_file_bytes=stat.get("total_inactive_file"),
        active_file_bytes=stat.get("total_active_file"),
        mapped_file_bytes=stat.get("total_mapped_file"),
        dirty_bytes=stat.get("total_dirty"),
        writeback_bytes=stat.get("total_writeback"),
        unevictable_bytes=stat.get("total_unevictable"),
        kernel_bytes=sysfs.read_number(f"{level.directory}/memory.kmem.usage_in_bytes", root=root),
        file_refaults=stat.get("total_workingset_refault_file"),
    )
    return Reading(
        source=_source(level),
        total_bytes=None if limit >= _NO_LIMIT_BYTES else limit,
        used_bytes=sysfs.read_number(f"{level.directory}/memory.usage_in_bytes", root=root),
        parts=parts,
    )


def _source(level: Level) -> str:
    return f"cgroup{level.version}:{level.group}"


def _kernel_v2_bytes(stat: dict[str, int]) -> int | None:
    """`kernel` (Linux 5.18) has everything but socket buffers; before, its known parts."""
    if "kernel" in stat:
        return _sum(stat, "kernel", later=("sock",))
    return _sum(stat, "slab", "kernel_stack", later=("pagetables", "percpu", "sock"))


def _sum(values: dict[str, int], *keys: str, later: Sequence[str] = ()) -> int | None:
    """None unless all `keys` are known.  Those in `later` came with later kernels."""
    if any(key not in values for key in keys):
        return None
    return sum(values[key] for key in (*keys, *later) if key in values)


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

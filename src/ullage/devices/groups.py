"""Memory cgroups, of both versions, as readings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ullage.devices.base import MemoryParts, Pressure, Reading
from ullage.devices.machine import pressure, total_of
from ullage.drivers import sysfs
from ullage.drivers.cgroups import Level

# v1 writes "no limit" as the largest multiple of the page size in 63 bits: 9223372036854771712
# with pages of 4 KiB, less with larger ones.  No machine has 4 EiB.
_NO_LIMIT_BYTES: Final = 1 << 62


def read_level(level: Level, *, root: Path, limits_only: bool = False) -> Reading | None:
    """What the group says; None where it has no memory files.

    `limits_only`: of a group without a limit nothing else is read, and of others no pressure.
    Raises Unreadable where the limit is refused.
    """
    limited, limit = _limit_bytes(level, root)
    if not limited:
        return None
    if limits_only and limit is None:
        return Reading(source=source(level), scope="group")
    usage = "memory.current" if level.version == 2 else "memory.usage_in_bytes"
    return Reading(
        source=source(level),
        scope="group",
        total_bytes=limit,
        used_bytes=sysfs.read_number(f"{level.directory}/{usage}", root=root),
        parts=_parts_v2(level, root) if level.version == 2 else _parts_v1(level, root),
        pressure=None if limits_only else _pressure(level, root),
    )


def source(level: Level) -> str:
    return f"cgroup{level.version}:{level.group}"


def _pressure(level: Level, root: Path) -> Pressure | None:
    """v1 groups have none."""
    return pressure(f"{level.directory}/memory.pressure", root=root)


def _limit_bytes(level: Level, root: Path) -> tuple[bool, int | None]:
    """Has the group memory files, and its limit.

    Over memory.high processes are slowed down until they hardly run: as good as a limit.
    """
    if level.version == 1:
        limit = sysfs.read_limit(f"{level.directory}/memory.limit_in_bytes", root=root)
        return limit is not None, None if limit is None or limit >= _NO_LIMIT_BYTES else limit
    if sysfs.read_text(f"{level.directory}/memory.max", root=root) is None:
        return False, None
    limits = [
        sysfs.read_limit(f"{level.directory}/{name}", root=root)
        for name in ("memory.max", "memory.high")
    ]
    return True, min((limit for limit in limits if limit is not None), default=None)


def _parts_v2(level: Level, root: Path) -> MemoryParts:
    """Source: Documentation/admin-guide/cgroup-v2.rst."""
    stat = sysfs.read_counters(f"{level.directory}/memory.stat", root=root)
    return MemoryParts(
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
        hugetlb_bytes=stat.get("hugetlb"),  # there only where the group is charged for them
        file_refaults=stat.get("workingset_refault_file"),
    )


def _kernel_v2_bytes(stat: dict[str, int]) -> int | None:
    """`kernel` (Linux 5.18) has everything but socket buffers; before, its known parts."""
    if "kernel" in stat:
        return total_of(stat, "kernel", later=("sock",))
    return total_of(stat, "slab", "kernel_stack", later=("pagetables", "percpu", "sock"))


def _parts_v1(level: Level, root: Path) -> MemoryParts:
    """Source: Documentation/admin-guide/cgroup-v1/memory.rst.

    Keys without "total_" count the group alone, without the groups below it.
    """
    stat = sysfs.read_counters(f"{level.directory}/memory.stat", root=root)
    return MemoryParts(
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

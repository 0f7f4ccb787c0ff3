"""The machine's physical memory: all of it, and that of the NUMA nodes that we may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ullage.devices.base import MemoryParts, Pressure, Reading
from ullage.drivers import nodes, procfs


def read_meminfo(*, root: Path, limits_only: bool = False) -> Reading:
    """/proc/meminfo.  Pressure and swap decide nothing; `limits_only` leaves pressure out."""
    sizes = procfs.meminfo(root=root)
    parts = _parts(
        sizes,
        file_bytes=total_of(sizes, "Cached", "Buffers"),
        hugetlb_bytes=sizes.get("Hugetlb"),  # pools of all page sizes, since Linux 4.16
    )
    return Reading(
        source="meminfo",
        scope="host",
        total_bytes=sizes.get("MemTotal"),
        used_bytes=_used_bytes(sizes),
        free_bytes=sizes.get("MemFree"),
        parts=parts,
        pressure=None if limits_only else pressure("/proc/pressure/memory", root=root),
    )


def restricting_nodes(*, root: Path) -> Sequence[int]:
    """The NUMA nodes that this process may use, where there are others; empty where it may use all,
    or where that cannot be told."""
    present, allowed = nodes.with_memory(root=root), nodes.allowed(root=root)
    if present is None or allowed is None or present <= allowed:
        return ()
    return sorted(present & allowed)


def read_nodes(numbers: Sequence[int], *, root: Path) -> Reading:
    """The sum of these nodes.  What one of them does not say is unknown of them all."""
    each = [nodes.meminfo(number, root=root) for number in numbers]
    common = set.intersection(*(set(sizes) for sizes in each))
    sizes = {key: sum(of_one[key] for of_one in each) for key in common}
    pools = [nodes.huge_page_pool_bytes(number, root=root) for number in numbers]
    known = [size for size in pools if size is not None]
    parts = _parts(
        sizes,
        file_bytes=sizes.get("FilePages"),
        hugetlb_bytes=sum(known) if len(known) == len(pools) else None,
    )
    return Reading(
        source=f"NUMA nodes {','.join(map(str, numbers))}",
        scope="nodes",
        total_bytes=sizes.get("MemTotal"),
        used_bytes=_used_bytes(sizes),
        free_bytes=sizes.get("MemFree"),
        parts=parts,
    )


def _parts(
    sizes: Mapping[str, int], *, file_bytes: int | None, hugetlb_bytes: int | None
) -> MemoryParts:
    """From the keys that /proc/meminfo and the nodes' files have in common; a node has no
    MemAvailable and no swap of its own."""
    return MemoryParts(
        anon_bytes=sizes.get("AnonPages"),
        shmem_bytes=sizes.get("Shmem"),
        file_bytes=file_bytes,
        inactive_file_bytes=sizes.get("Inactive(file)"),
        active_file_bytes=sizes.get("Active(file)"),
        mapped_file_bytes=sizes.get("Mapped"),
        dirty_bytes=sizes.get("Dirty"),
        writeback_bytes=sizes.get("Writeback"),
        unevictable_bytes=sizes.get("Unevictable"),
        kernel_bytes=total_of(sizes, "Slab", "KernelStack", "PageTables", later=("Percpu",)),
        slab_reclaimable_bytes=sizes.get("SReclaimable"),
        hugetlb_bytes=hugetlb_bytes,
        available_bytes=sizes.get("MemAvailable"),
        swap_total_bytes=sizes.get("SwapTotal"),
        swap_free_bytes=sizes.get("SwapFree"),
    )


def _used_bytes(sizes: Mapping[str, int]) -> int | None:
    total, free = sizes.get("MemTotal"), sizes.get("MemFree")
    return None if total is None or free is None else total - free


def pressure(path: str, *, root: Path) -> Pressure | None:
    """None where the kernel does not measure it (off at boot: EOPNOTSUPP), or may not say."""
    averages = procfs.pressure(path, root=root)
    if "some" not in averages or "full" not in averages:
        return None
    return Pressure(some_percent=averages["some"], full_percent=averages["full"])


def total_of(values: Mapping[str, int], *keys: str, later: Sequence[str] = ()) -> int | None:
    """None unless all `keys` are known.  Those in `later` came with later kernels."""
    if any(key not in values for key in keys):
        return None
    return sum(values[key] for key in (*keys, *later) if key in values)

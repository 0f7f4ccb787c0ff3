"""NUMA nodes: which there are, which this process may use, and what each says of its memory.

Source: Documentation/admin-guide/mm/numaperf.rst and drivers/base/node.c.  Sizes are bytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ullage.drivers import procfs, sysfs
from ullage.units import KIB

_FOLDER: Final = "/sys/devices/system/node"
_POOL: Final = re.compile(r"hugepages-(?P<size>\d+)kB")


def with_memory(*, root: Path = sysfs.REAL_ROOT) -> frozenset[int] | None:
    """Nodes that have memory; None where the kernel does not say."""
    for name in ("has_memory", "online"):
        text = sysfs.read_optional(f"{_FOLDER}/{name}", root=root)
        if text is not None:
            return numbers(text)
    return None


def allowed(*, root: Path = sysfs.REAL_ROOT) -> frozenset[int] | None:
    """Nodes that this process may take memory from; None where unreadable.

    Some kernels name nodes here that do not exist.
    """
    text = procfs.allowed_memory_nodes(root=root)
    return None if text is None else numbers(text)


def numbers(text: str) -> frozenset[int]:
    """The kernel's list format: "0-1,3" is {0, 1, 3}, and nothing is nobody."""
    found: set[int] = set()
    for piece in text.strip().split(","):
        first, _, last = piece.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def meminfo(node: int, *, root: Path = sysfs.REAL_ROOT) -> dict[str, int]:
    """The node's file, with keys as in /proc/meminfo.  Empty where unreadable."""
    text = sysfs.read_optional(f"{_FOLDER}/node{node}/meminfo", root=root) or ""
    return sysfs.sizes_bytes(text.replace(f"Node {node} ", ""))


def huge_page_pool_bytes(node: int, *, root: Path = sysfs.REAL_ROOT) -> int | None:
    """The node's share of the pools of all page sizes; None where unreadable.

    Its meminfo counts the pages of the default size only.
    """
    folder = f"{_FOLDER}/node{node}/hugepages"
    try:
        names = [entry.name for entry in sysfs.below(root, folder).iterdir()]
    except OSError:
        return None
    pool_bytes = 0
    for name in names:
        pages = sysfs.read_number(f"{folder}/{name}/nr_hugepages", root=root)
        match = _POOL.fullmatch(name)
        if match is None or pages is None:
            return None
        pool_bytes += pages * int(match["size"]) * KIB
    return pool_bytes

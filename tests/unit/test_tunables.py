"""The C library's tunables for the engine's processes: ours is added, what is there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.drivers.malloc import TUNABLES, map_large_blocks, with_huge_pages
from ullage.units import MIB

OURS = "glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ({}, OURS),
        ({TUNABLES: ""}, OURS),
        ({TUNABLES: "glibc.malloc.check=3"}, f"glibc.malloc.check=3:{OURS}"),
        ({TUNABLES: "glibc.malloc.hugetlb=0"}, "glibc.malloc.hugetlb=0"),
        ({TUNABLES: f"glibc.malloc.check=3:{OURS}"}, f"glibc.malloc.check=3:{OURS}"),
    ],
)
def test_what_the_user_set_stays(present: dict[str, str], wanted: str):
    assert with_huge_pages(present) == wanted


@pytest.mark.parametrize(
    ("enabled", "started_with"),
    [
        ("always madvise [never]", f"{TUNABLES}={OURS}"),
        ("always [madvise] never", ""),
        ("always [madvise] never", f"{TUNABLES}=glibc.malloc.hugetlb=0"),
        ("always [madvise] never", f"OTHER={OURS}"),
        (None, f"{TUNABLES}={OURS}"),
    ],
)
def test_large_blocks_stay_in_the_heap_where_mappings_get_small_pages(
    tmp_path: Path, enabled: str | None, started_with: str
):
    files = {"proc/self/environ": f"PATH=/bin\0{started_with}\0"}
    if enabled is not None:
        folder = "sys/kernel/mm/transparent_hugepage"
        files |= {f"{folder}/enabled": enabled, f"{folder}/hpage_pmd_size": str(2 * MIB)}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert not map_large_blocks(2 * MIB, root=tmp_path)

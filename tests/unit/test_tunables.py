"""The C library's tunables for the engine's processes: ours is added, what is there stays."""

from __future__ import annotations

import pytest

from ullage.drivers.malloc import TUNABLES, with_huge_pages

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

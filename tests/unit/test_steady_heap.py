"""The C library's tunables for the engine's processes: ours are added, what is there stays."""

from __future__ import annotations

import pytest

from ullage.drivers.steady_heap import TUNABLES, tunables_for_engines

CACHE = "glibc.malloc.tcache_count=0"
HUGE = "glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        (None, f"{CACHE}:{HUGE}"),
        ("", f"{CACHE}:{HUGE}"),
        ("glibc.malloc.check=3", f"glibc.malloc.check=3:{CACHE}:{HUGE}"),
        ("glibc.malloc.hugetlb=0", f"glibc.malloc.hugetlb=0:{CACHE}"),
        ("glibc.malloc.tcache_count=7", f"glibc.malloc.tcache_count=7:{HUGE}"),
        (f"{HUGE}:{CACHE}", f"{HUGE}:{CACHE}"),
    ],
)
def test_what_the_user_set_stays(present: str | None, wanted: str):
    environment = {} if present is None else {TUNABLES: present}
    assert tunables_for_engines(environment) == wanted
    assert tunables_for_engines({TUNABLES: wanted}) == wanted

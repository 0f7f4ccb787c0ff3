"""Which memory of a group counts as unreclaimable."""

from __future__ import annotations

from ullage.compare.counters import Sampler, refaults, unreclaimable_bytes

V1 = {
    "total_rss": 1000,
    "total_cache": 500,
    "total_shmem": 100,
    "total_inactive_file": 250,
    "total_active_file": 150,
    "total_unevictable": 0,
    "total_workingset_refault_file": 7,
}
V2 = {
    "anon": 1000,
    "file": 500,
    "shmem": 100,
    "slab_reclaimable": 40,
    "slab_unreclaimable": 30,
    "kernel_stack": 20,
    "pagetables": 10,
    "workingset_refault_file": 9,
}


def test_version_1_counts_anonymous_shared_and_kernel_memory_and_no_file_cache() -> None:
    assert unreclaimable_bytes(V1, 60) == 1000 + 100 + 60


def test_version_2_counts_the_same_by_its_own_names() -> None:
    assert unreclaimable_bytes(V2, None) == 1000 + 100 + 30 + 20 + 10


def test_locked_file_pages_count_and_locked_anonymous_pages_count_once() -> None:
    locked_file = {**V1, "total_inactive_file": 200, "total_unevictable": 50}
    assert unreclaimable_bytes(locked_file, 0) == 1000 + 100 + 50
    locked_anonymous = {**V1, "total_unevictable": 300}
    assert unreclaimable_bytes(locked_anonymous, 0) == 1000 + 100


def test_refaults_are_read_from_either_version() -> None:
    assert (refaults(V1), refaults(V2), refaults({})) == (7, 9, None)


def test_without_a_group_nothing_is_counted() -> None:
    with Sampler(None) as sampler:
        counters = sampler.counters()
    assert counters.peak_unreclaimable_bytes is None
    assert counters.oom_kills is None

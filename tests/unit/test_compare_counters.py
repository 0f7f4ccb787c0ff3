"""Which memory of a group counts as unreclaimable, and what a sampler makes of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ullage.accounting.exact import unreclaimable_bytes
from ullage.compare import counters as counters_module
from ullage.compare.counters import Counters, Sampler
from ullage.devices import host
from ullage.drivers.memory_group import MemoryGroup

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
    "inactive_file": 250,
    "active_file": 150,
    "unevictable": 0,
    "slab": 70,
    "slab_reclaimable": 40,
    "slab_unreclaimable": 30,
    "kernel_stack": 20,
    "pagetables": 10,
    "percpu": 5,
    "sock": 3,
    "workingset_refault_file": 9,
}


def group(directory: Path, stat: dict[str, int], **files: str) -> MemoryGroup:
    """A directory with the files that tell the versions apart."""
    limit = {"memory.max": "max"} if "anon" in stat else {"memory.limit_in_bytes": "9999"}
    text = "".join(f"{key} {value}\n" for key, value in stat.items())
    for name, value in {**limit, "memory.stat": text, **files}.items():
        (directory / name).write_text(value)
    return MemoryGroup(version=2 if "anon" in stat else 1, path=directory)


def occupied(directory: Path, stat: dict[str, int], **files: str) -> int | None:
    return unreclaimable_bytes(host.read_group(group(directory, stat, **files).path).parts)


KMEM = {"memory.kmem.usage_in_bytes": "60"}


def test_version_1_counts_anonymous_shared_and_kernel_memory_and_no_file_cache(
    tmp_path: Path,
) -> None:
    assert occupied(tmp_path, V1, **KMEM) == 1000 + 100 + 60


def test_version_2_counts_every_part_of_the_kernel_but_reclaimable_slab(tmp_path: Path) -> None:
    assert occupied(tmp_path, V2) == 1000 + 100 + 30 + 20 + 10 + 5 + 3


def test_an_old_kernel_without_page_tables_and_per_cpu_memory_still_has_a_sum(
    tmp_path: Path,
) -> None:
    old = {key: V2[key] for key in V2 if key not in ("pagetables", "percpu", "sock")}
    assert occupied(tmp_path, old) == 1000 + 100 + 30 + 20


def test_a_new_kernels_own_sum_stands_for_its_parts(tmp_path: Path) -> None:
    assert occupied(tmp_path, {**V2, "kernel": 70 + 20 + 10 + 5 + 8}) == 1100 + 30 + 35 + 8 + 3


def test_counters_read_one_after_the_other_never_make_less_than_nothing(tmp_path: Path) -> None:
    assert occupied(tmp_path, {**V2, "kernel": 20, "sock": 0}) == 1100


def test_locked_file_pages_count_and_locked_anonymous_pages_count_once(tmp_path: Path) -> None:
    locked_file = {**V1, "total_inactive_file": 200, "total_unevictable": 50}
    assert occupied(tmp_path, locked_file, **KMEM) == 1000 + 100 + 50 + 60
    locked_anonymous = {**V1, "total_unevictable": 300}
    assert occupied(tmp_path, locked_anonymous, **KMEM) == 1000 + 100 + 60
    mlocked = {**V2, "inactive_file": 200, "unevictable": 50}
    assert occupied(tmp_path, mlocked) == 1000 + 100 + 68 + 50


def sampled(inside: MemoryGroup) -> Counters:
    with Sampler(inside) as sampler:
        while sampler._samples == 0 and sampler._thread.is_alive():
            time.sleep(0.001)
        return sampler.counters()


@pytest.mark.parametrize(("stat", "refaults"), [(V1, 7), (V2, 9)])
def test_a_sampler_knows_peak_rate_and_refaults_of_either_version(
    tmp_path: Path, stat: dict[str, int], refaults: int
) -> None:
    counters = sampled(group(tmp_path, stat, **KMEM))
    assert counters.peak_unreclaimable_bytes is not None
    assert counters.peak_unreclaimable_bytes > 1100
    assert counters.samples_per_s is not None
    assert counters.samples_per_s > 0
    assert counters.refaulted_pages == refaults


def test_a_sample_without_an_answer_makes_the_peak_unknown(tmp_path: Path) -> None:
    counters = sampled(group(tmp_path, {key: V2[key] for key in V2 if key != "shmem"}))
    assert counters.peak_unreclaimable_bytes is None
    assert counters.samples_per_s is None


def test_an_error_while_sampling_makes_the_peak_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(parts: object) -> int:
        raise OSError(19, "No such device")

    monkeypatch.setattr(counters_module, "unreclaimable_bytes", gone)
    assert sampled(group(tmp_path, V2)).peak_unreclaimable_bytes is None


def test_without_a_group_nothing_is_counted() -> None:
    with Sampler(None) as sampler:
        counters = sampler.counters()
    assert counters.peak_unreclaimable_bytes is None
    assert counters.oom_kills is None

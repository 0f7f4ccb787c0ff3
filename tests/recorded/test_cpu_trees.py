"""The host reader and the accounting on trees of other machines (ULLAGE_RECORDINGS)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ullage.accounting.exact import settle, unreclaimable_bytes
from ullage.accounting.snapshot import snapshot
from ullage.devices import host
from ullage.devices.base import MemoryParts, Pressure, Reading
from ullage.drivers import sysfs
from ullage.drivers.memory_group import MemoryGroup
from ullage.errors import Unreadable
from ullage.units import GIB, KIB, MIB

RECORDINGS = os.environ.get("ULLAGE_RECORDINGS")
pytestmark = pytest.mark.skipif(
    not RECORDINGS, reason="ULLAGE_RECORDINGS does not name a folder of recorded trees"
)


def tree(name: str) -> Path:
    path = Path(RECORDINGS or "") / name
    if not path.is_dir():
        pytest.skip(f"no recorded tree {name}")
    return path


def by_source(root: Path) -> dict[str, Reading]:
    return {reading.source: reading for reading in host.read(root=root)}


def test_v1_hybrid_reads_the_subtree_of_the_hierarchy_that_carries_memory():
    readings = by_source(tree("cpu-cgroup-v1-hybrid"))
    # The root of the hierarchy was not recorded; "0::/" is the one without memory.
    assert list(readings) == ["meminfo", "cgroup1:/job"]
    job = readings["cgroup1:/job"]
    assert job.total_bytes is None  # 9223372036854771712
    assert job.used_bytes == 1982279680
    assert job.parts.anon_bytes == 1146720256  # total_rss, not rss 13627392
    assert job.parts.shmem_bytes == 9076736
    assert job.parts.file_bytes == 836820992
    # total_mapped_file and total_dirty were not recorded: unknown, though plain keys say 0.
    assert (job.parts.mapped_file_bytes, job.parts.dirty_bytes) == (None, None)
    # The cache is shmem and the two lists, so nothing of it is locked.
    assert 836820992 == 9076736 + 631382016 + 196362240
    # No limit, and no meminfo in the tree: nothing says what is available.
    with pytest.raises(Unreadable):
        settle(list(readings.values()))


def test_v2_nested_walks_from_an_unlimited_group_to_the_ancestor_that_binds():
    root = tree("cpu-cgroup-v2-nested")
    readings = by_source(root)
    assert {source: reading.total_bytes for source, reading in readings.items()} == {
        "meminfo": None,
        "cgroup2:/kubepods.slice/pod1/ctr": None,  # "max"
        "cgroup2:/kubepods.slice/pod1": 30 * GIB,  # memory.high, below memory.max of 32 GiB
        "cgroup2:/kubepods.slice": 64 * GIB,
    }
    settled = settle(list(readings.values()))
    # Without file_mapped and file_dirty it is not known what can be reclaimed, so nothing is:
    #   pod1      30 - 20 = 10 GiB
    #   kubepods  64 - 56 =  8 GiB
    assert {each.source: each.available_bytes for each in settled.candidates} == {
        "meminfo": None,
        "cgroup2:/kubepods.slice/pod1/ctr": None,
        "cgroup2:/kubepods.slice/pod1": 10 * GIB,
        "cgroup2:/kubepods.slice": 8 * GIB,
    }
    assert settled.binding_source == "cgroup2:/kubepods.slice"
    assert settled.total_bytes == 64 * GIB
    kubepods = MemoryGroup(version=2, path=root / "sys/fs/cgroup/kubepods.slice")
    assert kubepods.oom_kills() == 0


def test_v2_nested_counts_clean_cache_but_no_shmem_once_the_kernel_says_what_is_mapped(tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(tree("cpu-cgroup-v2-nested"), root)
    for group in ("kubepods.slice", "kubepods.slice/pod1"):
        with (root / "sys/fs/cgroup" / group / "memory.stat").open("a") as stat:
            stat.write(f"file_mapped {GIB}\nfile_dirty {256 * MIB}\nfile_writeback 0\n")
    settled = settle(host.read(root=root))
    # `file` of pod1 is 7 GiB: 2 + 2 on the lists, 3 shmem.
    #   pod1      30 - (20 - (2 + 2 - 1 - 0.25)) = 12.75 GiB
    #   kubepods  64 - (56 - (6 + 4 - 1 - 0.25)) = 16.75 GiB
    assert settled.binding_source == "cgroup2:/kubepods.slice/pod1"
    assert settled.available_bytes == 30 * GIB - (20 * GIB - (4 * GIB - GIB - 256 * MIB))
    kubepods = next(each for each in settled.candidates if each.source.endswith("slice"))
    assert kubepods.available_bytes == 64 * GIB - (56 * GIB - (10 * GIB - GIB - 256 * MIB))


def test_a_container_on_a_1_tb_host_is_never_given_the_host_s_memory(tmp_path):
    recorded = tree("cpu-comfyui-container-on-1tb-host")
    readings = by_source(recorded)
    assert readings["cgroup2:/"].total_bytes == 90 * GIB
    assert readings["meminfo"].parts.available_bytes == 880426716 * KIB
    # memory.current was not recorded: no answer rather than 840 GiB, or 90.
    with pytest.raises(Unreadable, match=r"90\.00 GiB"):
        settle(list(readings.values()))

    root = tmp_path / "tree"
    shutil.copytree(recorded, root)
    (root / "sys/fs/cgroup/memory.current").write_text(f"{20 * GIB}\n")
    settled = settle(host.read(root=root))
    assert settled.available_bytes == 90 * GIB - 20 * GIB
    assert settled.binding_source == "cgroup2:/"


def test_a_whole_meminfo_is_settled_and_laid_out_to_the_byte():
    readings = host.read(root=tree("cpu-this-vm"))
    taken = snapshot(readings=readings, processes=[], taken_at_s=0.0)
    # MemAvailable - Mapped - (Dirty + Writeback) - margin; 1 % of MemTotal is below 256 MiB.
    assert taken.available_bytes == (20861904 - 231144 - (3904 + 0) - 256 * 1024) * KIB
    assert taken.total_bytes == 24684092 * KIB
    sizes = {line.name: line.size_bytes for line in taken.ledger.lines}
    assert sizes == {
        "other processes": (3349840 + 8904) * KIB,  # AnonPages + Shmem
        # Slab + KernelStack + PageTables + Percpu - SReclaimable
        "kernel memory": (112020 + 3568 + 14512 + 976 - 85228) * KIB,
        "file pages, mapped and in use": 231144 * KIB,
        "file pages, dirty or written back": 3904 * KIB,
        "margin for the host's watermarks": 262144 * KIB,
        "unused": 17706792 * KIB,  # MemFree
        "file pages, reclaimable": (20861904 - 231144 - 3904 - 262144 - 17706792) * KIB,
    }
    assert sum(size or 0 for size in sizes.values()) + taken.ledger.residual_bytes == (
        24684092 * KIB
    )
    meminfo = readings[0].parts
    # AnonPages + Shmem + unreclaimable kernel memory. Of 18912 kB that are locked at most 172 kB
    # are file pages: Cached + Buffers less Shmem and the two lists.
    assert (
        unreclaimable_bytes(meminfo)
        == (3349840 + 8904 + (112020 + 3568 + 14512 + 976 - 85228)) * KIB
        + min(18912, 3365052 + 71560 - 8904 - 1873280 - 1554256) * KIB
    )


def test_refused_pressure_files_leave_everything_unknown():
    root = tree("cpu-psi-off")
    with pytest.raises(Unreadable, match="EOPNOTSUPP"):
        sysfs.read_text("/proc/pressure/memory", root=root)
    (meminfo,) = host.read(root=root)
    assert (meminfo.total_bytes, meminfo.parts) == (None, MemoryParts())
    assert meminfo.pressure is None


def test_numa_nodes_alone_do_not_make_up_a_host_total():
    (meminfo,) = host.read(root=tree("cpu-numa-two-nodes"))
    assert (meminfo.total_bytes, meminfo.parts.available_bytes) == (None, None)
    with pytest.raises(Unreadable):
        settle([meminfo])


def test_a_process_bound_to_one_of_two_nodes_has_what_is_free_there(tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(tree("cpu-numa-two-nodes"), root)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text("Mems_allowed_list:\t0\n")
    settled = settle(host.read(root=root))
    assert settled.binding_source == "NUMA nodes 0"
    assert settled.total_bytes == 726000000 * KIB
    # Which file pages are mapped or dirty was not recorded, so none of them counts; 1 % margin.
    assert settled.available_bytes == 156000000 * KIB - 726000000 * KIB // 100


def test_a_group_that_never_waited_for_memory_says_so():
    pod = by_source(tree("cpu-cgroup-v2-nested"))["cgroup2:/kubepods.slice/pod1"]
    assert pod.pressure == Pressure(some_percent=0.0, full_percent=0.0)

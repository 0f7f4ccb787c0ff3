"""The host reader on trees written by the test: each key in its place, unknown stays None."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ullage.devices import host
from ullage.devices.base import MemoryParts
from ullage.errors import Unreadable
from ullage.units import KIB

MEMINFO = """\
MemTotal:       1000 kB
MemFree:         600 kB
MemAvailable:    800 kB
Buffers:           1 kB
Cached:          200 kB
Active(file):    100 kB
Inactive(file):   70 kB
Unevictable:       3 kB
Dirty:             5 kB
Writeback:         2 kB
AnonPages:        90 kB
Mapped:           40 kB
Shmem:            30 kB
Slab:             12 kB
SReclaimable:      8 kB
KernelStack:       2 kB
PageTables:        4 kB
Percpu:            1 kB
"""
V2 = {
    "/proc/self/cgroup": "0::/pod/ctr\n",
    "/proc/self/mountinfo": "32 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
V1 = {
    "/proc/self/cgroup": "4:memory:/job\n0::/\n",
    "/proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
}


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def process_files(pid: int, *, ppid: int, state: str = "S", **files: str) -> dict[str, str]:
    fields = " ".join([state, str(ppid), *["0"] * 17, "99", "0"])
    return {f"/proc/{pid}/stat": f"{pid} (worker) {fields}\n"} | {
        f"/proc/{pid}/{name}": text for name, text in files.items()
    }


def test_meminfo_gives_each_part_in_bytes(tmp_path):
    (reading,) = host.read(root=write_tree(tmp_path, {"/proc/meminfo": MEMINFO}))
    assert reading.source == "meminfo"
    assert reading.total_bytes == 1000 * KIB
    assert reading.free_bytes == 600 * KIB
    assert reading.used_bytes == 400 * KIB
    assert reading.parts == MemoryParts(
        anon_bytes=90 * KIB,
        shmem_bytes=30 * KIB,
        file_bytes=(200 + 1) * KIB,
        inactive_file_bytes=70 * KIB,
        active_file_bytes=100 * KIB,
        mapped_file_bytes=40 * KIB,
        dirty_bytes=5 * KIB,
        writeback_bytes=2 * KIB,
        unevictable_bytes=3 * KIB,
        kernel_bytes=(12 + 2 + 4 + 1) * KIB,
        slab_reclaimable_bytes=8 * KIB,
        available_bytes=800 * KIB,
    )


def test_an_empty_machine_says_nothing_rather_than_zero(tmp_path):
    (reading,) = host.read(root=tmp_path)
    assert reading.parts == MemoryParts()
    assert (reading.total_bytes, reading.used_bytes, reading.free_bytes) == (None, None, None)


def test_a_refused_meminfo_says_nothing_rather_than_zero(tmp_path):
    (reading,) = host.read(root=write_tree(tmp_path, {"/proc/meminfo.EACCES": ""}))
    assert (reading.total_bytes, reading.parts) == (None, MemoryParts())


def test_v2_levels_without_memory_files_are_left_out_and_the_ones_above_are_read(tmp_path):
    files = {
        "/sys/fs/cgroup/pod/memory.max": "4096000\n",
        "/sys/fs/cgroup/pod/memory.high": "max\n",
        "/sys/fs/cgroup/pod/memory.current": "2048000\n",
        "/sys/fs/cgroup/pod/memory.stat": (
            "anon 10\nfile 90\nkernel 20\nsock 2\nshmem 3\nfile_mapped 4\nfile_dirty 5\n"
            "file_writeback 6\ninactive_file 7\nactive_file 8\nunevictable 9\n"
            "slab_reclaimable 11\nworkingset_refault_file 12\n"
        ),
    }
    _, pod = host.read(root=write_tree(tmp_path, V2 | files))
    assert pod.source == "cgroup2:/pod"
    assert (pod.total_bytes, pod.used_bytes) == (4096000, 2048000)
    assert pod.parts == MemoryParts(
        anon_bytes=10,
        file_bytes=90,
        kernel_bytes=20 + 2,  # `kernel` leaves socket buffers out
        shmem_bytes=3,
        mapped_file_bytes=4,
        dirty_bytes=5,
        writeback_bytes=6,
        inactive_file_bytes=7,
        active_file_bytes=8,
        unevictable_bytes=9,
        slab_reclaimable_bytes=11,
        file_refaults=12,
    )


def test_the_lower_of_max_and_high_is_the_limit(tmp_path):
    directory = "/sys/fs/cgroup/pod"
    for hard, high, limit in (("900", "700", 700), ("max", "700", 700), ("900", "max", 900)):
        files = {f"{directory}/memory.max": hard, f"{directory}/memory.high": high}
        _, pod = host.read(root=write_tree(tmp_path, V2 | files))
        assert pod.total_bytes == limit


def test_an_unlimited_v2_level_is_read_and_has_no_total(tmp_path):
    files = {"/sys/fs/cgroup/pod/memory.max": "max\n"}
    _, pod = host.read(root=write_tree(tmp_path, V2 | files))
    assert (pod.total_bytes, pod.used_bytes, pod.parts) == (None, None, MemoryParts())


def test_kernel_memory_before_linux_5_18_is_the_sum_of_its_parts(tmp_path):
    files = {
        "/sys/fs/cgroup/pod/memory.max": "max\n",
        "/sys/fs/cgroup/pod/memory.stat": "slab 100\nkernel_stack 20\npercpu 3\nsock 1\n",
    }
    _, pod = host.read(root=write_tree(tmp_path, V2 | files))
    assert pod.parts.kernel_bytes == 124


def test_v1_counts_the_subtree_and_not_the_group_alone(tmp_path):
    directory = "/sys/fs/cgroup/memory/job"
    files = {
        f"{directory}/memory.limit_in_bytes": "4096000\n",
        f"{directory}/memory.usage_in_bytes": "2048000\n",
        f"{directory}/memory.kmem.usage_in_bytes": "77\n",
        f"{directory}/memory.stat": (
            "cache 1\nrss 1\nshmem 1\nmapped_file 1\ndirty 1\nwriteback 1\ninactive_file 1\n"
            "active_file 1\nunevictable 1\ntotal_cache 20\ntotal_rss 30\ntotal_shmem 40\n"
            "total_mapped_file 50\ntotal_dirty 60\ntotal_inactive_file 70\n"
        ),
    }
    _, job = host.read(root=write_tree(tmp_path, V1 | files))
    assert (job.source, job.total_bytes, job.used_bytes) == ("cgroup1:/job", 4096000, 2048000)
    assert job.parts == MemoryParts(
        file_bytes=20,
        anon_bytes=30,
        shmem_bytes=40,
        mapped_file_bytes=50,
        dirty_bytes=60,
        inactive_file_bytes=70,
        kernel_bytes=77,
    )


def test_v1_no_limit_is_none_with_any_page_size(tmp_path):
    for page_bytes in (4 * KIB, 16 * KIB, 64 * KIB):
        sentinel = (2**63 - 1) // page_bytes * page_bytes
        files = {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{sentinel}\n"}
        _, job = host.read(root=write_tree(tmp_path, V1 | files))
        assert job.total_bytes is None


def test_pss_is_taken_where_it_is_told_apart_and_rss_otherwise(tmp_path):
    status = "Name:\tworker\nRssAnon:\t10 kB\nRssFile:\t20 kB\nRssShmem:\t30 kB\n"
    pss = "Rss: 9 kB\nPss_Anon: 1 kB\nPss_File: 2 kB\nPss_Shmem: 3 kB\n"
    write_tree(
        tmp_path,
        process_files(10, ppid=1, status=status, smaps_rollup=pss)
        | process_files(11, ppid=10, status=status, smaps_rollup="Rss: 9 kB\nPss: 4 kB\n")
        | process_files(12, ppid=10, status=status)
        | {"/proc/12/smaps_rollup.EACCES": ""},
    )
    shared, old, refused = host.read_processes([10, 11, 12], root=tmp_path)
    assert (shared.anon_bytes, shared.file_bytes, shared.shmem_bytes) == (KIB, 2 * KIB, 3 * KIB)
    assert shared.source == "smaps_rollup"
    assert (shared.pid, shared.ppid, shared.name, shared.start_time_ticks) == (10, 1, "worker", 99)
    for reading in (old, refused):
        assert (reading.anon_bytes, reading.file_bytes) == (10 * KIB, 20 * KIB)
        assert (reading.shmem_bytes, reading.source) == (30 * KIB, "status")


def test_a_process_that_cannot_be_read_is_unknown_and_one_that_ended_is_left_out(tmp_path):
    write_tree(
        tmp_path,
        process_files(10, ppid=1)
        | {"/proc/10/status.EPERM": "", "/proc/10/smaps_rollup.EPERM": ""}
        | process_files(12, ppid=1, state="Z"),
    )
    (hidden,) = host.read_processes([10, 11, 12], root=tmp_path)
    assert hidden.pid == 10
    assert (hidden.anon_bytes, hidden.shmem_bytes, hidden.file_bytes) == (None, None, None)
    assert hidden.source is None


def test_a_process_tree_has_every_living_descendant_and_nobody_else(tmp_path):
    parents = {10: 1, 11: 10, 12: 11, 13: 10, 20: 1, 21: 20}
    files: dict[str, str] = {}
    for pid, ppid in parents.items():
        files |= process_files(pid, ppid=ppid)
    files |= process_files(14, ppid=10, state="Z")
    write_tree(tmp_path, files)
    assert sorted(host.process_tree(10, root=tmp_path)) == [10, 11, 12, 13]
    assert host.process_tree(21, root=tmp_path) == [21]
    assert host.process_tree(99, root=tmp_path) == []


def test_the_host_is_named_by_its_processor(tmp_path):
    write_tree(tmp_path, {"/proc/cpuinfo": "processor\t: 0\nmodel name\t: Z80\n"})
    (device,) = host.find(root=tmp_path)
    assert (device.platform, device.index, device.name) == ("host", 0, "Z80")
    assert device.pci_bus_id is None


def smaps(**mappings: tuple[str, int, int]) -> str:
    """Mappings of files: name=(permissions, inode, referenced KiB)."""
    return "".join(
        f"7f3a00000000-7f3a10000000 {permissions} 00000000 fe:00 {inode}    /{name}\n"
        f"Rss:             {referenced} kB\nReferenced:      {referenced} kB\n"
        "Anonymous:              0 kB\n"
        for name, (permissions, inode, referenced) in mappings.items()
    )


def test_code_that_several_processes_run_is_in_use_once_and_their_data_for_each(tmp_path):
    write_tree(
        tmp_path,
        process_files(
            10, ppid=1, smaps=smaps(torch=("r-xp", 5, 40), more=("r-xp", 5, 2), data=("r--p", 6, 7))
        )
        | process_files(11, ppid=10, smaps=smaps(torch=("r-xp", 5, 60), data=("r--p", 6, 9)))
        | process_files(12, ppid=10, smaps=smaps(other=("r-xp", 8, 3))),
    )
    in_use = host.referenced_file_bytes([10, 11, 12], root=tmp_path)
    assert in_use == (60 + 3 + 7 + 9) * KIB


def test_one_process_whose_references_cannot_be_read_leaves_them_unknown(tmp_path):
    write_tree(
        tmp_path,
        process_files(10, ppid=1, smaps=smaps(torch=("r-xp", 5, 40)))
        | process_files(11, ppid=10)
        | {"/proc/11/smaps.EACCES": ""},
    )
    assert host.referenced_file_bytes([10, 12], root=tmp_path) == 40 * KIB
    assert host.referenced_file_bytes([10, 11], root=tmp_path) is None


def test_a_limit_that_is_refused_is_not_taken_for_none(tmp_path):
    v2, v1 = write_tree(tmp_path / "v2", V2), write_tree(tmp_path / "v1", V1)
    groups = (
        (v2, "/sys/fs/cgroup/pod/ctr/memory.max"),
        (v1, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes"),
    )
    for root, limit in groups:
        write_tree(root, {"/proc/meminfo": MEMINFO, f"{limit}.EACCES": ""})
        with pytest.raises(Unreadable, match="EACCES"):
            host.read(root=root)


def test_a_group_is_identified_by_its_inode_under_whichever_name(tmp_path: Path):
    """Every container sees its own group as the root."""
    outside = write_tree(tmp_path / "outside", {**V1, "/sys/fs/cgroup/memory/job/tasks": ""})
    inside = write_tree(
        tmp_path / "inside",
        {
            "/proc/self/cgroup": "4:memory:/\n0::/\n",
            "/proc/self/mountinfo": V1["/proc/self/mountinfo"],
        },
    )
    mounted = inside / "sys/fs/cgroup/memory"
    mounted.parent.mkdir(parents=True)
    mounted.symlink_to(outside / "sys/fs/cgroup/memory/job")
    names = host.identities(root=inside)
    assert set(names) == {"meminfo", "cgroup1:/"}
    assert names["cgroup1:/"] == host.identities(root=outside)["cgroup1:/job"]
    assert names["meminfo"] == "host"
    mounted.unlink()
    assert host.identities(root=inside) == {"meminfo": "host"}

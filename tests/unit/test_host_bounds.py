"""What bounds a process besides its groups, on trees written by the test: NUMA nodes, the huge page
pool, limits of the process, promises; and what is told and bounds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.exact import settle
from ullage.accounting.snapshot import snapshot
from ullage.devices import host
from ullage.devices.base import Pressure, Reading
from ullage.drivers import nodes
from ullage.units import GIB, KIB, MIB

NODE = "/sys/devices/system/node"
MEMINFO = """\
MemTotal:       67108864 kB
MemFree:        41943040 kB
MemAvailable:   52428800 kB
Active(file):    1048576 kB
Inactive(file): 10485760 kB
Mapped:                0 kB
Dirty:                 0 kB
Writeback:             0 kB
AnonPages:       1048576 kB
Shmem:                 0 kB
SwapTotal:       2097152 kB
SwapFree:        1048576 kB
CommitLimit:     8388608 kB
Committed_AS:    2097152 kB
Hugetlb:         4194304 kB
"""
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max data size             {data:<20} unlimited            bytes
Max stack size            8388608              unlimited            bytes
Max open files            20000                20000                files
Max address space         {addresses:<20} unlimited            bytes
"""
GROUP = "/sys/fs/cgroup/pod"
V2 = {
    "/proc/self/cgroup": "0::/pod\n",
    "/proc/self/mountinfo": "32 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def node_files(node: int, *, total: int, free: int, **sizes: int) -> dict[str, str]:
    """Sizes in kB; file pages that are clean and not mapped, unless `sizes` says more."""
    values = {"MemTotal": total, "MemFree": free, "Mapped": 0, "Dirty": 0, "Writeback": 0} | sizes
    lines = "".join(f"Node {node} {key}: {value} kB\n" for key, value in values.items())
    return {f"{NODE}/node{node}/meminfo": f"{lines}Node {node} HugePages_Total: 3\n"}


def two_nodes(allowed: str) -> dict[str, str]:
    file_pages = {"Active(file)": 2 << 20, "Inactive(file)": 1 << 20}
    return {
        "/proc/self/status": f"VmSize:\t100 kB\nMems_allowed_list:\t{allowed}\n",
        f"{NODE}/has_memory": "0-1\n",
        **node_files(0, total=32 << 20, free=4 << 20, **file_pages),
        **node_files(1, total=16 << 20, free=15 << 20, **file_pages),
    }


def by_source(root: Path) -> dict[str, Reading]:
    return {reading.source: reading for reading in host.read(root=root)}


@given(st.frozensets(st.integers(0, 1023)))
def test_a_list_of_nodes_is_read_as_the_kernel_writes_it(wanted: frozenset[int]):
    text = ",".join(str(number) for number in sorted(wanted))
    assert nodes.numbers(f"{text}\n") == wanted


def test_ranges_of_nodes_include_both_ends():
    assert nodes.numbers("0-2,5,7-8\n") == {0, 1, 2, 5, 7, 8}
    assert nodes.numbers("\n") == frozenset()


def test_a_process_bound_to_one_node_has_what_that_node_has_left(tmp_path):
    root = write_tree(tmp_path, {"/proc/meminfo": MEMINFO} | two_nodes(allowed="0"))
    node = by_source(root)["NUMA nodes 0"]
    assert (node.scope, node.total_bytes, node.used_bytes) == ("nodes", 32 * GIB, 28 * GIB)
    assert node.parts.available_bytes is None
    settled = settle(host.read(root=root))
    assert settled.binding_source == "NUMA nodes 0"
    # Free and file pages, as in a group; less the host's margin of 1 %.
    assert settled.available_bytes == (4 + 3) * GIB - 32 * GIB // 100


def test_the_allowed_nodes_are_added_up(tmp_path):
    third = node_files(2, total=8 << 20, free=8 << 20, **{"Active(file)": 0, "Inactive(file)": 0})
    files = two_nodes(allowed="0,2-7") | third | {f"{NODE}/has_memory": "0-2\n"}
    node = by_source(write_tree(tmp_path, files))["NUMA nodes 0,2"]
    assert (node.total_bytes, node.free_bytes) == (40 * GIB, 12 * GIB)
    assert node.parts.active_file_bytes == 2 * GIB


@pytest.mark.parametrize("allowed", ["0-1", "0-63"])
def test_nodes_bind_nobody_who_may_use_all_of_them(tmp_path, allowed):
    root = write_tree(tmp_path, {"/proc/meminfo": MEMINFO} | two_nodes(allowed=allowed))
    assert list(by_source(root)) == ["meminfo"]


def test_a_node_that_cannot_be_read_leaves_their_sum_unknown_and_not_zero(tmp_path):
    root = write_tree(tmp_path, {"/proc/meminfo": MEMINFO} | two_nodes(allowed="1"))
    (root / NODE.lstrip("/") / "node1/meminfo").unlink()
    node = by_source(root)["NUMA nodes 1"]
    assert (node.total_bytes, node.used_bytes, node.parts.anon_bytes) == (None, None, None)
    assert settle(host.read(root=root)).binding_source == "meminfo"


def test_the_huge_page_pool_is_a_line_and_never_available(tmp_path):
    taken = snapshot(
        readings=host.read(root=write_tree(tmp_path, {"/proc/meminfo": MEMINFO})),
        processes=[],
        taken_at_s=0.0,
    )
    sizes = {line.name: line.size_bytes for line in taken.ledger.lines}
    assert sizes["huge page pool"] == 4 * GIB
    assert taken.available_bytes == 50 * GIB - 64 * GIB // 100


def test_a_node_s_pools_of_all_page_sizes_are_counted(tmp_path):
    pools = {
        f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
        f"{NODE}/node0/hugepages/hugepages-1048576kB/nr_hugepages": "2\n",
    }
    root = write_tree(tmp_path, two_nodes(allowed="0") | pools)
    assert by_source(root)["NUMA nodes 0"].parts.hugetlb_bytes == 6 * MIB + 2 * GIB
    (root / NODE.lstrip("/") / "node0/hugepages/hugepages-2048kB/nr_hugepages").unlink()
    assert by_source(root)["NUMA nodes 0"].parts.hugetlb_bytes is None


def test_limits_on_what_a_process_maps_are_readings_of_its_own(tmp_path):
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/limits": LIMITS.format(data=3 * GIB, addresses=9 * GIB),
        "/proc/self/status": "VmSize:\t2097152 kB\nVmData:\t1048576 kB\n",
    }
    root = write_tree(tmp_path, files)
    _, addresses, data = host.read(root=root)
    assert (addresses.source, addresses.scope) == ("RLIMIT_AS", "process")
    assert (addresses.total_bytes, addresses.used_bytes) == (9 * GIB, 2 * GIB)
    assert (data.source, data.total_bytes, data.used_bytes) == ("RLIMIT_DATA", 3 * GIB, GIB)
    settled = settle(host.read(root=root))
    assert (settled.binding_source, settled.available_bytes) == ("RLIMIT_DATA", 2 * GIB)


def test_a_process_without_limits_has_no_reading_of_them(tmp_path):
    files = {"/proc/self/limits": LIMITS.format(data="unlimited", addresses="unlimited")}
    assert list(by_source(write_tree(tmp_path, files))) == ["meminfo"]


def test_a_limit_of_a_process_whose_size_is_unknown_binds_nobody(tmp_path):
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/limits": LIMITS.format(data="unlimited", addresses=GIB),
    }
    root = write_tree(tmp_path, files)
    assert by_source(root)["RLIMIT_AS"].used_bytes is None
    assert settle(host.read(root=root)).binding_source == "meminfo"


@pytest.mark.parametrize("mode", ["0", "1"])
def test_without_strict_overcommit_promises_bound_nothing(tmp_path, mode):
    files = {"/proc/meminfo": MEMINFO, "/proc/sys/vm/overcommit_memory": f"{mode}\n"}
    assert list(by_source(write_tree(tmp_path, files))) == ["meminfo"]


def test_with_strict_overcommit_the_commit_limit_binds_less_what_the_kernel_keeps(tmp_path):
    files = {"/proc/meminfo": MEMINFO, "/proc/sys/vm/overcommit_memory": "2\n"}
    root = write_tree(tmp_path, files)
    taken = snapshot(readings=host.read(root=root), processes=[], taken_at_s=0.0)
    assert (taken.binding_source, taken.total_bytes) == ("overcommit", 8 * GIB)
    assert taken.available_bytes == 6 * GIB - 136 * MIB
    assert {line.name: line.size_bytes for line in taken.ledger.lines} == {
        "promised to processes already": 2 * GIB,
        "kept back for root and small processes": 136 * MIB,
        "unused": 6 * GIB - 136 * MIB,
    }
    assert taken.ledger.residual_bytes == 0


def test_swap_is_told_and_never_available(tmp_path):
    without = MEMINFO.replace("SwapTotal:       2097152", "SwapTotal:  0")
    readings = [
        host.read(root=write_tree(tmp_path / name, {"/proc/meminfo": text}))
        for name, text in (("with", MEMINFO), ("without", without))
    ]
    parts = readings[0][0].parts
    assert (parts.swap_total_bytes, parts.swap_free_bytes) == (2 * GIB, GIB)
    assert settle(readings[0]).available_bytes == settle(readings[1]).available_bytes


def test_pressure_is_told_for_the_host_and_for_each_group_that_has_it(tmp_path):
    some = "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n"
    full = "full avg10=0.25 avg60=0.00 avg300=0.00 total=3\n"
    files = {
        "/proc/pressure/memory": some + full,
        f"{GROUP}/memory.max": "max\n",
        f"{GROUP}/memory.pressure.EOPNOTSUPP": "",
    }
    readings = by_source(write_tree(tmp_path, V2 | files))
    assert readings["meminfo"].pressure == Pressure(some_percent=1.5, full_percent=0.25)
    assert readings["cgroup2:/pod"].pressure is None


@given(
    total=st.integers(0, 64 * GIB),
    limit=st.none() | st.integers(0, 64 * GIB),
    used=st.integers(0, 64 * GIB),
    allowed=st.sampled_from(["0", "1", "0-1"]),
    mode=st.sampled_from("012"),
)
def test_a_quick_look_gives_the_same_number(tmp_path_factory, total, limit, used, allowed, mode):
    """Places are remembered from before the numbers moved."""
    files = V2 | {
        "/proc/meminfo": MEMINFO,
        "/proc/sys/vm/overcommit_memory": f"{mode}\n",
        "/proc/self/limits": LIMITS.format(data=60 * GIB, addresses="unlimited"),
        f"{GROUP}/memory.max": "max\n",
        f"{GROUP}/memory.current": "0\n",
    }
    root = write_tree(tmp_path_factory.mktemp("tree"), files | two_nodes(allowed))
    places = host.places(root=root)
    moved = {
        "/proc/meminfo": MEMINFO.replace("52428800", str(total // KIB)),
        f"{GROUP}/memory.max": "max\n" if limit is None else f"{limit}\n",
        f"{GROUP}/memory.current": f"{used}\n",
    }
    write_tree(root, moved)
    quick = settle(host.read_at(places, root=root, limits_only=True))
    whole = settle(host.read(root=root))
    assert (quick.available_bytes, quick.binding_source) == (
        whole.available_bytes,
        whole.binding_source,
    )

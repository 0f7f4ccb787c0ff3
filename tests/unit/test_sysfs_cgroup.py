"""Kernel files below a root, and where the own memory cgroup is."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ullage.drivers import cgroups, sysfs
from ullage.errors import Unreadable

V2_MOUNT = "32 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V1_CPU_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
UNIFIED_MOUNT = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def levels_of(root: Path, *, cgroup: str, mountinfo: str) -> list[tuple[int, str, str]]:
    write_tree(root, {"/proc/self/cgroup": cgroup, "/proc/self/mountinfo": mountinfo})
    found = cgroups.memory_levels(root=root)
    return [(level.version, level.group, level.directory) for level in found]


def test_an_absent_file_is_none_and_a_refused_one_raises_with_its_errno(tmp_path):
    write_tree(tmp_path, {"/sys/refused.EPERM": "", "/sys/off.EOPNOTSUPP": ""})
    assert sysfs.read_text("/sys/nothing", root=tmp_path) is None
    for path, name in (("/sys/refused", "EPERM"), ("/sys/off", "EOPNOTSUPP")):
        with pytest.raises(Unreadable, match=f"failed with {name}") as caught:
            sysfs.read_text(path, root=tmp_path)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == getattr(errno, name)
        assert sysfs.read_optional(path, root=tmp_path) is None
        assert sysfs.read_number(path, root=tmp_path) is None
        assert sysfs.read_counters(path, root=tmp_path) == {}


def test_a_file_that_should_hold_a_number_and_does_not_is_an_error(tmp_path):
    write_tree(tmp_path, {"/a": "max\n", "/b": "12\n", "/c": "banana\n"})
    assert sysfs.read_number("/a", root=tmp_path) is None
    assert sysfs.read_number("/b", root=tmp_path) == 12
    with pytest.raises(Unreadable, match="banana"):
        sysfs.read_number("/c", root=tmp_path)


def test_sizes_are_1024_byte_units_and_counts_are_not_sizes():
    assert sysfs.sizes_bytes("MemTotal:  2 kB\nHugePages_Total:  7\nName: kB\n") == {
        "MemTotal": 2048
    }


def test_v2_lists_the_own_group_and_every_ancestor(tmp_path):
    assert levels_of(tmp_path, cgroup="0::/a.slice/b/c\n", mountinfo=V2_MOUNT) == [
        (2, "/a.slice/b/c", "/sys/fs/cgroup/a.slice/b/c"),
        (2, "/a.slice/b", "/sys/fs/cgroup/a.slice/b"),
        (2, "/a.slice", "/sys/fs/cgroup/a.slice"),
        (2, "/", "/sys/fs/cgroup"),
    ]


def test_in_hybrid_mode_the_hierarchy_with_memory_counts_and_not_the_unified_line(tmp_path):
    assert levels_of(
        tmp_path,
        cgroup="5:memory:/job\n2:cpu,cpuacct:/x\n0::/elsewhere\n",
        mountinfo=V1_CPU_MOUNT + UNIFIED_MOUNT + V1_MOUNT,
    ) == [(1, "/job", "/sys/fs/cgroup/memory/job"), (1, "/", "/sys/fs/cgroup/memory")]


def test_v2_memory_beside_v1_controllers_is_found_at_its_own_mount(tmp_path):
    assert levels_of(
        tmp_path, cgroup="3:cpu:/x\n0::/job\n", mountinfo=V1_CPU_MOUNT + UNIFIED_MOUNT
    ) == [
        (2, "/job", "/sys/fs/cgroup/unified/job"),
        (2, "/", "/sys/fs/cgroup/unified"),
    ]


def test_a_cgroup_namespace_shows_one_level(tmp_path):
    assert levels_of(tmp_path, cgroup="0::/\n", mountinfo=V2_MOUNT) == [(2, "/", "/sys/fs/cgroup")]


def test_a_container_without_namespace_sees_its_group_as_the_root_of_the_mount(tmp_path):
    mount = "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    assert levels_of(tmp_path, cgroup="4:memory:/docker/4f/job\n", mountinfo=mount) == [
        (1, "/docker/4f/job", "/sys/fs/cgroup/memory/job"),
        (1, "/docker/4f", "/sys/fs/cgroup/memory"),
    ]


def test_a_mount_of_a_group_with_the_same_beginning_is_not_the_own_one(tmp_path):
    other = "50 31 0:32 /job /mnt/other rw - cgroup cgroup rw,memory\n"
    assert levels_of(tmp_path, cgroup="4:memory:/job2\n", mountinfo=other) == [
        (1, "/job2", "/sys/fs/cgroup/memory/job2"),
        (1, "/", "/sys/fs/cgroup/memory"),
    ]


def test_of_two_mounts_the_one_that_shows_more_ancestors_is_taken(tmp_path):
    bound = "50 31 0:28 /a /mnt/part rw - cgroup2 cgroup2 rw\n"
    levels = levels_of(tmp_path, cgroup="0::/a/b\n", mountinfo=bound + V2_MOUNT)
    assert [directory for _, _, directory in levels] == [
        "/sys/fs/cgroup/a/b",
        "/sys/fs/cgroup/a",
        "/sys/fs/cgroup",
    ]


def test_a_space_in_a_mount_point_is_unescaped(tmp_path):
    mount = "32 25 0:28 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n"
    assert levels_of(tmp_path, cgroup="0::/\n", mountinfo=mount) == [(2, "/", "/mnt/my groups")]


def test_a_mount_from_above_the_namespace_hides_the_own_limit_and_is_refused(tmp_path):
    mount = "32 25 0:28 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    with pytest.raises(Unreadable, match="Mount the cgroup file system again"):
        levels_of(tmp_path, cgroup="0::/\n", mountinfo=mount)


def test_a_group_bound_over_the_mount_from_above_the_namespace_is_the_own_one(tmp_path):
    above = "72 68 0:32 /../../.. /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    bound = "84 72 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    assert levels_of(tmp_path, cgroup="4:memory:/\n0::/\n", mountinfo=above + bound) == [
        (1, "/", "/sys/fs/cgroup/memory")
    ]


@pytest.mark.parametrize(
    ("path", "level"),
    [
        ("/sys/fs/cgroup/memory.max", (2, "/", "/sys/fs/cgroup")),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", (1, "/", "/sys/fs/cgroup/memory")),
    ],
)
def test_without_proc_self_the_usual_mount_point_is_the_own_group(tmp_path, path, level):
    write_tree(tmp_path, {path: "1073741824\n"})
    (found,) = cgroups.memory_levels(root=tmp_path)
    assert (found.version, found.group, found.directory) == level


def test_a_machine_without_memory_cgroups_has_no_levels(tmp_path):
    assert cgroups.memory_levels(root=tmp_path) == ()
    write_tree(tmp_path, {"/proc/self/cgroup": "3:cpu:/x\n"})
    assert cgroups.memory_levels(root=tmp_path) == ()

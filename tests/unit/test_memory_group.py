"""Both versions of a memory group, on directories that look like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.drivers.cgroups import Version
from ullage.drivers.memory_group import MemoryGroup
from ullage.units import GIB


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_text(text)


@pytest.fixture
def v2(tmp_path: Path) -> MemoryGroup:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    group = MemoryGroup(version=2, path=tmp_path / "mine")
    group.create()
    return group


@pytest.fixture
def v1(tmp_path: Path) -> MemoryGroup:
    group = MemoryGroup(version=1, path=tmp_path / "v1")
    group.create()
    return group


def test_version_2_hands_the_controller_down_where_it_is_not_yet_and_withdraws_it(
    tmp_path: Path,
) -> None:
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu\n")
    group = MemoryGroup(version=2, path=tmp_path / "mine")
    assert not group.has_controller()
    group.hand_down_controller()
    assert control.read_text() == "+memory"
    group.withdraw_controller()
    assert control.read_text() == "-memory"


def test_a_controller_that_another_group_relies_on_is_not_withdrawn(v2: MemoryGroup) -> None:
    v2.hand_down_controller()
    v2.withdraw_controller()
    assert (v2.path.parent / "cgroup.subtree_control").read_text() == "+memory"


def test_version_1_has_the_controller_everywhere(v1: MemoryGroup, v2: MemoryGroup) -> None:
    assert v1.has_controller()
    assert v2.has_controller()


def test_version_2_limits_memory_and_allows_no_swap(v2: MemoryGroup) -> None:
    write(v2.path, {"memory.swap.max": "max\n"})
    v2.set_limit_bytes(4 * GIB)
    assert (v2.path / "memory.max").read_text() == "4294967296"
    assert (v2.path / "memory.swap.max").read_text() == "0"


def test_version_1_limits_memory_and_memory_with_swap_alike(v1: MemoryGroup) -> None:
    write(v1.path, {"memory.memsw.limit_in_bytes": "9223372036854771712\n"})
    v1.set_limit_bytes(4 * GIB)
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    assert [(v1.path / name).read_text() for name in limits] == ["4294967296"] * 2


def test_a_kernel_without_swap_accounting_is_not_asked_for_it(
    v1: MemoryGroup, v2: MemoryGroup
) -> None:
    v1.set_limit_bytes(GIB)
    v2.set_limit_bytes(GIB)
    assert not (v1.path / "memory.memsw.limit_in_bytes").exists()
    assert not (v2.path / "memory.swap.max").exists()


def test_kills_and_hits_come_from_the_groups_own_counters(v2: MemoryGroup, tmp_path: Path) -> None:
    write(v2.path, {"memory.events": "low 0\nhigh 0\nmax 17\noom 2\noom_kill 1\n"})
    assert (v2.oom_kills(), v2.limit_hits()) == (1, 17)
    v1 = MemoryGroup(version=1, path=tmp_path / "other")
    v1.create()
    counters = {"memory.failcnt": "3", "memory.memsw.failcnt": "4", "memory.limit_in_bytes": "9"}
    write(v1.path, {**counters, "memory.max_usage_in_bytes": "9"})
    write(v1.path, {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"})
    assert (v1.oom_kills(), v1.limit_hits()) == (2, 7)


def test_a_hit_counter_that_cannot_be_true_is_unknown(v1: MemoryGroup) -> None:
    still = {"memory.failcnt": "0", "memory.limit_in_bytes": "9"}
    write(v1.path, {**still, "memory.max_usage_in_bytes": "9"})
    assert v1.limit_hits() is None
    write(v1.path, {"memory.max_usage_in_bytes": "8"})
    assert v1.limit_hits() == 0


@pytest.mark.parametrize(
    ("version", "files", "kills"),
    [
        (2, {"memory.events": "low 0\noom 3\noom_kill 2\n"}, 2),
        (1, {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}, 1),
        (1, {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, None),
        (2, {}, None),
    ],
)
def test_kills_are_unknown_where_the_kernel_does_not_count_them(
    tmp_path: Path, version: Version, files: dict[str, str], kills: int | None
) -> None:
    write(tmp_path, files)
    assert MemoryGroup(version=version, path=tmp_path).oom_kills() == kills


def test_processes_are_read_as_numbers(v1: MemoryGroup) -> None:
    write(v1.path, {"cgroup.procs": "12\n34\n"})
    assert v1.pids() == [12, 34]


def test_removing_twice_is_no_error(v1: MemoryGroup) -> None:
    v1.remove()
    v1.remove()
    assert not v1.path.exists()

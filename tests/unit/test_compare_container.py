"""Making and removing a limited group, on directories that look like the kernel's."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from ullage.compare import container as container_module
from ullage.compare.container import container
from ullage.drivers.cgroups import Level
from ullage.drivers.memory_group import MemoryGroup
from ullage.errors import NotEnforced, Unreadable
from ullage.units import GIB


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's own group, of version 2; what the kernel makes and removes is done here."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    level = Level(version=2, group="/", directory=str(tmp_path))
    monkeypatch.setattr(container_module, "memory_levels", lambda: (level,))
    monkeypatch.setattr(container_module, "_check", lambda inside, limit_bytes: None)
    monkeypatch.setattr(container_module, "_POLL_S", 0.0)

    def create(group: MemoryGroup) -> None:
        group.path.mkdir()
        (group.path / "cgroup.procs").write_text("")

    def remove(group: MemoryGroup) -> None:
        with contextlib.suppress(FileNotFoundError):
            for file in group.path.iterdir():
                file.unlink()
            group.path.rmdir()

    monkeypatch.setattr(MemoryGroup, "create", create)
    monkeypatch.setattr(MemoryGroup, "remove", remove)
    return tmp_path


def groups(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()]


def test_a_controller_handed_down_is_withdrawn_at_the_end(parent: Path) -> None:
    with container(GIB) as inside:
        assert inside.group is not None
        assert (inside.group.path / "memory.max").read_text() == str(GIB)
        assert (parent / "cgroup.subtree_control").read_text() == "+memory"
    assert groups(parent) == []
    assert (parent / "cgroup.subtree_control").read_text() == "-memory"


def test_a_controller_that_was_there_stays(parent: Path) -> None:
    (parent / "cgroup.subtree_control").write_text("memory\n")
    with container(GIB):
        pass
    assert (parent / "cgroup.subtree_control").read_text() == "memory\n"


def test_a_parent_with_processes_is_named_with_the_ways_out(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(group: MemoryGroup) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(MemoryGroup, "hand_down_controller", busy)
    with pytest.raises(NotEnforced, match=r"/: EBUSY.*processes of its own.*--cgroupns=host"):
        container(GIB).__enter__()
    assert groups(parent) == []


def test_an_interrupt_ends_the_waiting_but_not_the_removal(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(group: MemoryGroup, seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(container_module, "_wait_empty", interrupted)
    with pytest.raises(KeyboardInterrupt), container(GIB):
        pass
    assert groups(parent) == []
    assert (parent / "cgroup.subtree_control").read_text() == "-memory"


def test_an_interrupt_in_the_midst_of_the_removal_does_not_keep_the_group(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = MemoryGroup.remove
    calls = iter([True])

    def interrupted_once(group: MemoryGroup) -> None:
        if next(calls, False):
            raise KeyboardInterrupt
        remove(group)

    monkeypatch.setattr(MemoryGroup, "remove", interrupted_once)
    with pytest.raises(KeyboardInterrupt), container(GIB):
        pass
    assert groups(parent) == []


def test_a_group_that_stays_busy_is_named_with_what_to_do(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(group: MemoryGroup) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(MemoryGroup, "remove", busy)
    monkeypatch.setattr(container_module, "REMOVED_WITHIN_S", 0.0)
    with pytest.raises(Unreadable, match=r"still busy .* rmdir "), container(GIB):
        pass


def test_a_group_that_somebody_else_removed_is_no_error(parent: Path) -> None:
    with container(GIB) as inside:
        assert inside.group is not None
        inside.group.remove()

"""What a process touches of its mapped files, as this machine's kernel counts it."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ullage.compare.container import container
from ullage.devices import host
from ullage.drivers import procfs
from ullage.errors import NotEnforced, Unreadable
from ullage.units import KIB, MIB

SIZE = 32 * MIB
SOURCE = Path(host.__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"\1" * SIZE)
    return path


@pytest.fixture
def mapped(file: Path) -> Iterator[mmap.mmap]:
    """A file of 32 MiB, mapped, and every page of it touched once."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), SIZE, prot=mmap.PROT_READ) as area:
        touch(area, SIZE)
        yield area


def touch(area: mmap.mmap, size_bytes: int) -> None:
    assert sum(area[:size_bytes:4096]) == size_bytes // 4096


def forget() -> None:
    try:
        if not procfs.forget_file_references():
            pytest.skip("this kernel cannot reset references")
    except Unreadable as refusal:
        pytest.skip(str(refusal))


def referenced_of(path: Path) -> int:
    """Of one file: what the interpreter itself touches meanwhile may be mapped by huge pages."""
    files = procfs.referenced_files()
    assert files is not None
    inode = path.stat().st_ino
    return sum(file.referenced_bytes for file in files if file.inode == inode)


@pytest.mark.parametrize("touched", [0, 16 * MIB, SIZE])
def test_what_was_touched_since_is_counted_and_what_is_only_mapped_is_not(file, mapped, touched):
    forget()
    touch(mapped, touched)
    assert referenced_of(file) == pytest.approx(touched, abs=2 * MIB)


@pytest.mark.parametrize("size", [64 * KIB, 512 * KIB])
def test_the_hottest_pages_are_seen_as_well(tmp_path, size):
    """The processor still knows where they lie when they are forgotten."""
    file = tmp_path / "code"
    file.write_bytes(b"\1" * size)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, prot=mmap.PROT_READ) as area:
        for _ in range(9):
            sum(area[::4096])
            forget()
            sum(area[::4096])
            assert referenced_of(file) == size


def test_all_that_was_touched_since_the_start_counts_until_it_is_forgotten(file, mapped):
    assert referenced_of(file) == SIZE
    forget()
    assert referenced_of(file) == 0


def test_references_of_a_process_that_is_gone_count_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert host.referenced_file_bytes([child.pid]) == 0
    host.forget_file_references([child.pid])


# A file is written inside the group, so that the group is charged for it, and half of it mapped;
# then the usual work touches a quarter of that, and 64 MiB of shared memory stay mapped all along.
OBSERVED = """
import json, mmap, os, sys
from ullage.vllm_plugin.observe import Observer

MIB = 1 << 20
path = sys.argv[1]
with open(path, "wb") as file:
    for _ in range(128):
        file.write(b"1" * MIB)
    os.fsync(file.fileno())
with open(path, "rb") as file:
    area = mmap.mmap(file.fileno(), 64 * MIB, prot=mmap.PROT_READ)
shared = mmap.mmap(-1, 64 * MIB)
shared.write(b"1" * len(shared))
sum(area[::4096])
def in_use_bytes(taken):
    lines = {line.name: line.size_bytes for line in taken.ledger.lines}
    return lines["file pages, mapped and in use"]

observer = Observer()
before = observer.take()
observer.watch_usual_work(lambda: sum(area[: 16 * MIB : 4096]))
after = observer.take()
print(json.dumps({
    "source": after.binding_source,
    "pids": [process.pid for process in after.processes],
    "own_pid": os.getpid(),
    "before": before.available_bytes,
    "after": after.available_bytes,
    "cheap": observer.available_bytes(),
    "hot_before": in_use_bytes(before),
    "hot_after": in_use_bytes(after),
}))
"""


@pytest.fixture
def observed(tmp_path: Path) -> dict[str, int]:
    forget()  # skips where the kernel cannot
    try:
        with container(512 * MIB) as inside:
            answer = subprocess.run(
                inside.command([sys.executable, "-c", OBSERVED, str(tmp_path / "file")]),
                # Of an engine that has ended: above every pid that this machine can give.
                env=os.environ | {"PYTHONPATH": str(SOURCE), "ULLAGE_FRONTEND": "99999999"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
    except NotEnforced as refusal:
        pytest.skip(str(refusal))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_an_engine_keeps_room_for_the_files_that_it_uses_and_not_for_its_shared_memory(observed):
    assert observed["source"].startswith("cgroup")
    # Mapped: 64 MiB of the file and of shared memory each; of use: 16 MiB of the file, some code.
    gain = (64 + 64 - 16) * MIB
    assert observed["hot_before"] - observed["hot_after"] == pytest.approx(gain, abs=8 * MIB)


def test_a_look_at_what_is_available_agrees_with_a_whole_snapshot(observed):
    assert observed["cheap"] == pytest.approx(observed["after"], abs=4 * MIB)


def test_a_front_end_that_has_ended_leaves_the_own_process_among_the_engine_s(observed):
    assert observed["own_pid"] in observed["pids"]

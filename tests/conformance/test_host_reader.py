"""The host reader against this machine's kernel: what a process takes shows in one line.

Sizes move in steps of 32 MiB. The tolerance of 4 MiB covers what the kernel batches per CPU
before it counts (64 pages a CPU in each counter), the kernel memory that comes with pages (page
tables; about 1 MiB of file system structures for a file of 32 MiB), and the interpreter itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ullage.accounting.snapshot import Snapshot, snapshot
from ullage.devices import host
from ullage.drivers import cgroups, procfs
from ullage.drivers.memory_group import MemoryGroup
from ullage.errors import Unreadable
from ullage.units import MIB

STEP = 32 * MIB
TOLERANCE = 4 * MIB
LIMIT = 512 * MIB
SOURCE = Path(host.__file__).parents[2]

# Says "ready", then obeys one command a line, and answers each with "done".
WORKER = """
import mmap, os, sys
kept = []
print("ready", flush=True)
for line in sys.stdin:
    command, size, path = line.rstrip("\\n").split(" ", 2)
    if command == "anon":
        area = mmap.mmap(-1, int(size), flags=mmap.MAP_PRIVATE)
        for offset in range(0, len(area), 4096):
            area[offset] = 1
    elif command == "write":
        with open(path, "wb", buffering=0) as area:
            for _ in range(0, int(size), 65536):
                area.write(b"\\1" * 65536)
            os.fsync(area)
    elif command == "map":
        with open(path, "rb") as file:
            area = mmap.mmap(file.fileno(), int(size), prot=mmap.PROT_READ)
        sum(area[offset] for offset in range(0, len(area), 4096))
    kept.append(area)
    print("done", flush=True)
"""


class Worker:
    """A process inside the scratch group, and snapshots of the two."""

    def __init__(self, process: subprocess.Popen[str], group: Path) -> None:
        self.process = process
        self.group = group

    def do(self, command: str, path: Path | str = "-") -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command} {STEP} {path}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def snapshot(self) -> Snapshot:
        taken = snapshot(
            readings=[host.read_group(self.group)],
            processes=host.read_processes([self.process.pid]),
            taken_at_s=time.time(),
        )
        known = sum(line.size_bytes or 0 for line in taken.ledger.lines)
        assert known + taken.ledger.residual_bytes == taken.total_bytes == LIMIT
        return taken


@pytest.fixture
def scratch_group() -> Iterator[Path]:
    """A memory cgroup of 512 MiB below the own one, removed afterwards."""
    levels = cgroups.memory_levels()
    if not levels:
        pytest.skip("this machine has no memory cgroups")
    group = Path(levels[0].directory) / f"ullage-test-{os.getpid()}"
    limit_file = group / cgroups.LIMIT_FILE[levels[0].version]
    with ExitStack() as stack:
        try:
            group.mkdir()
        except OSError as error:
            pytest.skip(f"no cgroup can be made below the own one: {error.strerror}")
        stack.callback(remove_group, group)
        if not limit_file.exists():
            pytest.skip("the own cgroup does not hand its memory controller down")
        limit_file.write_text(str(LIMIT))
        yield group


def remove_group(group: Path) -> None:
    """A killed process leaves its group a moment after its end is seen."""
    for _ in range(500):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.01)
        else:
            return
    group.rmdir()


def enter(group: Path) -> Callable[[], None]:
    def write_pid() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    return write_pid


def run_inside(group: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=enter(group),
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def worker(scratch_group: Path) -> Iterator[Worker]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER],
        preexec_fn=enter(scratch_group),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Worker(process, scratch_group)
        finally:
            process.kill()


def changes(before: Snapshot, after: Snapshot) -> dict[str, int]:
    """Steps by which each line changed; lines that stayed within the tolerance are left out."""
    old = {line.name: line.size_bytes or 0 for line in before.ledger.lines}
    new = {line.name: line.size_bytes or 0 for line in after.ledger.lines}
    assert old.keys() == new.keys()
    found = {}
    for name in old:
        steps = round((new[name] - old[name]) / STEP)
        assert abs(new[name] - old[name] - steps * STEP) <= TOLERANCE, (name, old, new)
        if steps:
            found["own" if name.startswith("python") else name] = steps
    return found


def is_on_memory(path: Path) -> bool:
    """Whether a file below `path` would be shmem rather than page cache."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [mount for mount in mounts if path.is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2] in ("tmpfs", "ramfs")


def test_this_machine_s_lines_and_residual_are_its_total():
    taken = snapshot(
        readings=host.read(),
        processes=host.read_processes(host.process_tree(os.getpid())),
        taken_at_s=time.time(),
    )
    known = sum(line.size_bytes or 0 for line in taken.ledger.lines)
    assert known + taken.ledger.residual_bytes == taken.total_bytes
    assert 0 < taken.available_bytes < taken.total_bytes
    assert any(f"({os.getpid()})" in line.name for line in taken.ledger.lines)


def test_a_process_inside_a_limited_group_finds_that_the_group_binds(scratch_group):
    code = (
        "from ullage.accounting.exact import settle; from ullage.devices import host;"
        "settled = settle(host.read());"
        "print(settled.binding_source, settled.total_bytes, settled.available_bytes)"
    )
    answer = run_inside(scratch_group, code)
    assert answer.returncode == 0, answer.stderr
    source, total, available = answer.stdout.split()
    assert source.endswith(f"/{scratch_group.name}")
    assert int(total) == LIMIT
    assert LIMIT - 128 * MIB < int(available) < LIMIT


def test_anonymous_memory_is_the_process_s_own_line(worker):
    before = worker.snapshot()
    worker.do("anon")
    assert changes(before, worker.snapshot()) == {"own": 1, "unused": -1}


def test_a_tmpfs_file_that_nobody_maps_is_taken_and_reclaimed_by_nothing(worker):
    directory = Path("/dev/shm")
    if not is_on_memory(directory):
        pytest.skip("/dev/shm is not a tmpfs")
    if os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize < 2 * STEP:
        pytest.skip("/dev/shm has less than 64 MiB left")
    file = directory / f"ullage-test-{os.getpid()}"
    before = worker.snapshot()
    with ExitStack() as stack:
        stack.callback(file.unlink, missing_ok=True)
        worker.do("write", file)
        after = worker.snapshot()
    assert changes(before, after) == {"other processes": 1, "unused": -1}
    assert before.available_bytes - after.available_bytes == pytest.approx(STEP, abs=TOLERANCE)


def test_file_pages_are_available_until_they_are_mapped(worker, tmp_path):
    if is_on_memory(tmp_path):
        pytest.skip(f"{tmp_path} is on a tmpfs, so its files are shmem")
    before = worker.snapshot()
    worker.do("write", tmp_path / "file")
    cached = worker.snapshot()
    assert changes(before, cached) == {"file pages, reclaimable": 1, "unused": -1}
    assert cached.available_bytes == pytest.approx(before.available_bytes, abs=TOLERANCE)

    worker.do("map", tmp_path / "file")
    mapped = worker.snapshot()
    assert changes(cached, mapped) == {
        "file pages, mapped and in use": 1,
        "file pages, reclaimable": -1,
    }
    assert mapped.own_file_bytes is not None
    assert cached.own_file_bytes is not None
    assert mapped.own_file_bytes - cached.own_file_bytes == pytest.approx(STEP, abs=TOLERANCE)


def test_a_kill_for_memory_is_counted_by_the_group_s_own_counter(scratch_group):
    version = cgroups.memory_levels()[0].version
    group = MemoryGroup(version=version, path=scratch_group)
    if group.oom_kills() is None:
        pytest.skip("this kernel does not count kills per cgroup")
    assert group.oom_kills() == 0
    limit_file = cgroups.LIMIT_FILE[version]
    (scratch_group / limit_file).write_text(str(STEP))
    answer = run_inside(scratch_group, f"x = b'1' * {4 * STEP}")
    assert answer.returncode == -signal.SIGKILL
    assert group.oom_kills() == 1


def test_a_child_is_in_the_tree_of_its_parent_until_it_ends():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert host.process_tree(os.getpid())[0] == os.getpid()
        assert child.pid in host.process_tree(os.getpid())
        (reading,) = host.read_processes([child.pid])
        assert (reading.pid, reading.ppid) == (child.pid, os.getpid())
        assert reading.anon_bytes is not None
        child.communicate(b"\n")
    assert child.pid not in host.process_tree(os.getpid())
    assert host.read_processes([child.pid]) == []


def test_the_peak_starts_again_from_the_present_size_when_it_is_reset():
    taken = bytearray(2 * STEP)
    taken[::4096] = b"\1" * len(taken[::4096])
    del taken
    high = procfs.peak_rss_bytes()
    try:
        if not procfs.reset_peak_rss():
            pytest.skip("this kernel cannot reset a peak")
    except Unreadable as refusal:
        pytest.skip(str(refusal))
    reset, present = procfs.peak_rss_bytes(), procfs.rss_bytes()
    assert high is not None
    assert reset is not None
    assert present is not None
    assert high - reset > STEP
    assert reset == pytest.approx(present, abs=TOLERANCE)

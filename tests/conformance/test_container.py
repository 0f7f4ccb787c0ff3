"""A real memory group around small programs: the limit holds, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ullage.compare import server
from ullage.compare.container import Container, container
from ullage.compare.counters import Sampler
from ullage.compare.server import running
from ullage.drivers.cgroups import LIMIT_FILE, memory_levels
from ullage.drivers.memory_group import MemoryGroup
from ullage.errors import EngineFailed, NotEnforced
from ullage.units import MIB

LIMIT_BYTES = 256 * MIB


@pytest.fixture
def inside() -> Iterator[Container]:
    try:
        with container(LIMIT_BYTES) as made:
            yield made
    except NotEnforced as error:
        pytest.skip(str(error))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(inside: Container, program: list[str]) -> subprocess.CompletedProcess[str]:
    command = inside.command(program)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_program_finds_the_limit_at_its_root(inside: Container) -> None:
    assert inside.group is not None
    file = Path(inside.mount_point) / LIMIT_FILE[inside.group.version]
    assert int(run(inside, ["cat", str(file)]).stdout) == LIMIT_BYTES


def test_a_program_sees_itself_in_the_root_group(inside: Container) -> None:
    code = (
        "from ullage.drivers.cgroups import memory_levels\n"
        "print([level.group for level in memory_levels()])"
    )
    assert run(inside, python(code)).stdout.strip() == "['/']"


def test_the_callers_own_view_is_as_before(inside: Container) -> None:
    before = memory_levels()
    run(inside, ["true"])
    assert memory_levels() == before


def test_over_the_limit_the_program_is_killed_and_counted(inside: Container) -> None:
    assert inside.group is not None
    ended = run(inside, python(f"bytearray(b'x') * {2 * LIMIT_BYTES}"))
    assert ended.returncode == -signal.SIGKILL
    assert inside.group.oom_kills() == 1


def test_the_sampler_sees_a_peak_that_lasts_a_tenth_of_a_second(inside: Container) -> None:
    hold = f"import time; x = bytearray(b'x') * {128 * MIB}; time.sleep(0.1); del x"
    with Sampler(inside.group) as sampler:
        run(inside, python(hold))
        counters = sampler.counters()
    assert counters.peak_unreclaimable_bytes is not None
    assert 128 * MIB < counters.peak_unreclaimable_bytes < 192 * MIB
    assert counters.oom_kills == 0


def test_file_pages_are_no_part_of_the_peak(inside: Container, tmp_path: Path) -> None:
    file = tmp_path / "file"
    in_chunks = (
        f"with open({str(file)!r}, 'wb') as f:\n    for _ in range(100): f.write(bytes(1 << 20))"
    )
    with Sampler(inside.group) as sampler:
        run(inside, python(in_chunks))
        counters = sampler.counters()
    assert counters.peak_unreclaimable_bytes is not None
    assert counters.peak_unreclaimable_bytes < 64 * MIB


def test_what_is_left_inside_is_ended_and_the_group_removed() -> None:
    try:
        with container(LIMIT_BYTES) as made:
            assert made.group is not None
            group = made.group
            stubborn = python(
                "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)"
            )
            left = subprocess.Popen(made.command(stubborn), start_new_session=True)
            while left.pid not in group.pids():
                time.sleep(0.01)
    except NotEnforced as error:
        pytest.skip(str(error))
    assert left.wait(timeout=10) == -signal.SIGKILL
    assert not group.path.exists()


def test_a_process_that_comes_in_during_the_removal_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = subprocess.Popen(python("import time; time.sleep(99)"))
    remove = MemoryGroup.remove

    def remove_too_late(group: MemoryGroup) -> None:
        if late.poll() is None:
            (group.path / "cgroup.procs").write_text(str(late.pid))
        remove(group)

    try:
        with container(LIMIT_BYTES) as made:
            assert made.group is not None
            group = made.group
            monkeypatch.setattr(MemoryGroup, "remove", remove_too_late)
    except NotEnforced as error:
        late.kill()
        pytest.skip(str(error))
    assert late.wait(timeout=10) == -signal.SIGTERM
    assert not group.path.exists()


def test_a_server_that_dies_leaves_its_error_line(inside: Container, tmp_path: Path) -> None:
    dies = python("raise ValueError('2.3 of 4.0 GiB')")
    log = tmp_path / "server.log"
    with (
        running(inside, dies, os.environ, log, server.free_port()) as started,
        pytest.raises(EngineFailed, match=r"ValueError: 2\.3 of 4\.0 GiB"),
    ):
        started.wait_ready()


def test_a_servers_descendants_end_with_it(inside: Container, tmp_path: Path) -> None:
    children = python(
        "import subprocess, time; p = subprocess.Popen(['sleep', '99']); print(p.pid, flush=True); "
        "time.sleep(99)"
    )
    log = tmp_path / "server.log"
    with running(inside, children, os.environ, log, server.free_port()) as started:
        while not log.read_text().strip():
            time.sleep(0.01)
        child = int(log.read_text())
        assert psutil.pid_exists(child)
    assert started.process.poll() is not None
    assert not psutil.pid_exists(child)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_no_group(number: int, inside: Container) -> None:
    del inside  # only to skip where no limit can be set
    code = (
        "import subprocess, time\n"
        "from ullage.compare.container import container\n"
        "from ullage.compare.interrupt import interruptible\n"
        f"with interruptible(), container({LIMIT_BYTES}) as made:\n"
        "    left = subprocess.Popen(made.command(['sleep', '99']), start_new_session=True)\n"
        "    print(made.group.path, left.pid, flush=True)\n"
        "    time.sleep(99)\n"
    )
    with subprocess.Popen(
        python(code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run_:
        assert run_.stdout is not None
        path, pid = run_.stdout.readline().split()
        run_.send_signal(number)
        run_.send_signal(number)  # an impatient user
        run_.wait(timeout=30)
    assert not Path(path).exists()
    assert not psutil.pid_exists(int(pid))

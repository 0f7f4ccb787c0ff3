"""The lease folder with real processes: races, ends at any moment, and what others may leave."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ullage.compare.container import Container, container
from ullage.errors import EngineFailed, NotEnforced, Unreadable
from ullage.leases import LeaseFolder, default_folder
from ullage.units import MIB

# An engine's whole life: enter, measure, commit, and wait to be ended.
ENGINE = """
import os, sys
from fractions import Fraction
from pathlib import Path
from ullage.accounting.leases import Lease, refuse_if_promised
from ullage.leases import LeaseFolder, this_process
place, share, fatal = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
me = this_process()
events = 0
def count(event, arguments):
    global events
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "fcntl.flock") and (
        event == "fcntl.flock" or str(place) in str(arguments[0])
    ):
        events += 1
        if events == fatal:
            os.kill(me.pid, 9)
sys.addaudithook(count)
print("ready", flush=True)
sys.stdin.readline()
lease = Lease(worker=me, frontend_pid=me.pid, limit="host", limits=("host",),
              limit_bytes=1 << 30, share=share, promised_bytes=1 << 29, taken_bytes=0)
folder = LeaseFolder(place)
with folder.changing():
    found = folder.clean()
    try:
        refuse_if_promised(Fraction(share), "host", found.living)
    except Exception as error:
        print(f"refused: {error}", flush=True)
        sys.exit()
    folder.write(lease)
folder.begin_measuring("host", lambda: print("waits", flush=True))
with folder.changing():
    folder.keep_size("this engine", 1 << 20)
    folder.write(lease)
folder.end_measuring()
print("serves", flush=True)
sys.stdin.readline()
folder.remove(lease)
"""


class EngineProcess:
    def __init__(self, place: Path, share: str = "2/3", fatal: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(place), share, str(fatal)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.says() == "ready"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """By SIGKILL, unless it has ended."""
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def test_of_two_that_start_at_once_and_want_too_much_together_one_is_refused(tmp_path: Path):
    place = tmp_path / "leases"
    with EngineProcess(place) as one, EngineProcess(place) as other:
        one.go_on()
        other.go_on()
        answers = sorted((one.says(), other.says()))
    assert answers[0].startswith("refused: Engines of ours hold 2/3 (process ")
    assert answers[1] == "serves"


def test_an_engine_that_is_killed_at_any_step_leaves_nothing_that_counts(tmp_path: Path):
    place = tmp_path / "leases"
    fatal, killed = 1, True
    while killed:
        with EngineProcess(place, fatal=fatal) as engine:
            engine.go_on()
            killed = engine.says() != "serves"
        folder = LeaseFolder(place)
        with folder.changing():
            assert folder.clean().living == ()
        folder.begin_measuring("host", lambda: pytest.fail("a dead engine is waited for"))
        folder.end_measuring()
        left = {path.name for path in place.iterdir()}
        assert left <= {"change.lock", "measuring-host.lock", "sizes"}
        fatal += 1
    assert fatal > 10, "the steps were not counted"


def test_a_lease_counts_while_its_process_lives_and_is_gone_after_a_clean_end(tmp_path: Path):
    folder = LeaseFolder(tmp_path / "leases")
    with EngineProcess(tmp_path / "leases", "1/3") as engine:
        engine.go_on()
        assert engine.says() == "serves"
        (lease,) = folder.read().living
        assert (lease.worker.pid, lease.share) == (engine.process.pid, "1/3")
        assert lease.taken_bytes > 4 * MIB  # what the process holds now, not what was written
        assert folder.earlier_size_bytes("this engine") == 1 << 20
        engine.go_on()
        assert engine.process.wait() == 0
    assert folder.read().living == ()
    assert not list((tmp_path / "leases").glob("*.json"))


def test_one_engine_measures_at_a_time_and_a_killed_one_lets_the_next_in(tmp_path: Path):
    folder = LeaseFolder(tmp_path / "leases")
    folder.begin_measuring("host", lambda: pytest.fail("nobody measures"))
    with EngineProcess(tmp_path / "leases") as engine:
        engine.go_on()
        assert engine.says() == "waits"
        folder.end_measuring()
        assert engine.says() == "serves"


def test_who_waits_too_long_for_one_engine_is_refused_with_a_way_out(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("ullage.leases.MEASURED_WITHIN_S", 0.0)
    holder, folder = LeaseFolder(tmp_path / "leases"), LeaseFolder(tmp_path / "leases")
    holder.begin_measuring("host", lambda: None)
    with pytest.raises(EngineFailed, match="ullage leases"):
        folder.begin_measuring("host", lambda: None)
    holder.end_measuring()


def test_who_waits_for_many_engines_waits_as_long_for_each(tmp_path: Path, monkeypatch):
    """Together they take longer than one may: the clock counts a turn at each look."""
    monkeypatch.setattr("ullage.leases.MEASURED_WITHIN_S", 2.5)
    ticks = iter(range(1000))
    monkeypatch.setattr("ullage.leases.time.monotonic", lambda: next(ticks))
    folders = [LeaseFolder(tmp_path / "leases") for _ in range(6)]
    folders[0].begin_measuring("host", lambda: None)
    looks = 0

    def next_holder(_: float) -> None:
        nonlocal looks
        looks += 1
        folders[looks - 1].end_measuring()
        if looks < len(folders):
            folders[looks].begin_measuring("host", lambda: pytest.fail("the lock is free"))

    monkeypatch.setattr("ullage.leases.time.sleep", next_holder)
    last = LeaseFolder(tmp_path / "leases")
    last.begin_measuring("host", lambda: None)
    last.end_measuring()
    assert looks == len(folders)


def test_engines_of_different_limits_do_not_wait_for_one_another(tmp_path: Path):
    one, other = LeaseFolder(tmp_path / "leases"), LeaseFolder(tmp_path / "leases")
    waits: list[str] = []
    one.begin_measuring("cgroup2:30:77", lambda: waits.append("one"))
    other.begin_measuring("cgroup2:/a/b", lambda: waits.append("other"))
    one.end_measuring()
    other.end_measuring()
    assert waits == []


def all_of(folder: LeaseFolder) -> None:
    with folder.changing():
        folder.keep_size("this engine", 1)
    folder.begin_measuring("host", lambda: None)


@pytest.mark.parametrize("name", ["change.lock", "measuring-host.lock", "sizes", "sizes.new"])
def test_a_folder_that_cannot_be_used_is_named_with_a_way_out(tmp_path: Path, name: str):
    place = tmp_path / "leases"
    folder = LeaseFolder(place)
    (place / name / "full").mkdir(parents=True)
    with pytest.raises(Unreadable, match=r"The lease folder .* XDG_RUNTIME_DIR"):
        all_of(folder)


def test_a_folder_in_the_place_of_an_unfinished_file_is_named_and_left(tmp_path: Path):
    folder = LeaseFolder(tmp_path / "leases")
    (tmp_path / "leases" / "z.new").mkdir()
    with folder.changing():
        assert folder.clean().damaged == (str(tmp_path / "leases" / "z.new"),)


def test_damaged_files_are_named_and_left(tmp_path: Path):
    folder = LeaseFolder(tmp_path / "leases")
    texts = {"a.json": b"", "b.json": b"\xff\xfe", "c.json": b'{"schema": "ullage.lease/9"}'}
    for name, text in texts.items():
        (tmp_path / "leases" / name).write_bytes(text)
    (tmp_path / "leases" / "sizes").write_bytes(b"{")
    with folder.changing():
        found = folder.clean()
    assert [Path(path).name for path in found.damaged] == ["a.json", "b.json", "c.json"]
    assert (found.living, found.dead) == ((), ())
    assert folder.earlier_size_bytes("any") is None
    assert len(list((tmp_path / "leases").glob("*.json"))) == 3


def test_a_folder_that_is_a_link_open_to_others_or_another_user_s_is_refused(tmp_path: Path):
    LeaseFolder(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(Unreadable, match="is not a folder of user"):
        LeaseFolder(tmp_path / "link")
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(Unreadable, match="is open to other users"):
        LeaseFolder(tmp_path / "open")
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    (tmp_path / "given").mkdir(mode=0o700)
    os.chown(tmp_path / "given", 12345, 12345)
    with pytest.raises(Unreadable, match="is not a folder of user"):
        LeaseFolder(tmp_path / "given")


def test_a_login_session_s_runtime_directory_is_not_taken(tmp_path: Path):
    own = Path(f"/tmp/ullage-{os.geteuid()}")
    assert default_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "ullage"
    for value in ("", f"/run/user/{os.geteuid()}", str(tmp_path / "missing")):
        assert default_folder({"XDG_RUNTIME_DIR": value}) == own


OBSERVER = """
import os
from ullage.accounting.leases import foreign_bytes
from ullage.accounting.exact import limiting
from ullage.vllm_plugin.observe import Observer
observer = Observer()
while True:
    taken = observer.take()
    print(foreign_bytes(taken, limiting(taken.readings).source, "", ()), flush=True)
    input()
"""
NEIGHBOUR = """
held = []
while True:
    print("ready", flush=True)
    size = int(input())
    held = [b"x" * size] if size else []
"""


class Asked:
    """A program inside the container that answers each line with one."""

    def __init__(self, inside: Container, program: str) -> None:
        command = inside.command([sys.executable, "-c", program])
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def answer(self, text: str | None = None) -> str:
        """To `text`; None: what it says by itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if text is not None:
            self.process.stdin.write(f"{text}\n")
            self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_neighbour_that_takes_and_frees_memory_is_seen_as_foreign():
    with ExitStack() as undo:
        try:
            inside = undo.enter_context(container(512 * MIB))
        except NotEnforced as error:
            pytest.skip(str(error))
        neighbour, observer = (Asked(inside, program) for program in (NEIGHBOUR, OBSERVER))
        undo.callback(observer.end)
        undo.callback(neighbour.end)
        assert neighbour.answer() == "ready"
        before = int(observer.answer())
        neighbour.answer(str(128 * MIB))
        during = int(observer.answer(""))
        neighbour.answer("0")
        after = int(observer.answer(""))
    assert 120 * MIB < during - before < 136 * MIB
    assert abs(after - before) < 8 * MIB

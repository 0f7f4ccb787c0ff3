"""/proc, on the machine that runs the tests and on written trees."""

from __future__ import annotations

import os
from pathlib import Path

from ullage.drivers import procfs


def test_a_process_name_may_contain_parentheses_and_spaces(tmp_path):
    directory = tmp_path / "proc/42"
    directory.mkdir(parents=True)
    fields = ["S", "7", *["0"] * 17, "12345", "0"]
    (directory / "stat").write_text(f"42 (a (b) c) {' '.join(fields)}\n")
    stat = procfs.stat(42, root=tmp_path)
    assert stat is not None
    assert (stat.pid, stat.name, stat.state) == (42, "a (b) c", "S")
    assert (stat.ppid, stat.start_time_ticks) == (7, 12345)


def test_a_process_that_is_not_there_is_none_and_has_no_sizes(tmp_path):
    assert procfs.stat(42, root=tmp_path) is None
    assert procfs.status(42, root=tmp_path) == {}
    assert procfs.smaps_rollup(42, root=tmp_path) == {}
    assert procfs.meminfo(root=tmp_path) == {}
    assert procfs.pids(root=tmp_path) == []


def test_this_process_is_itself():
    stat = procfs.stat("self")
    assert stat is not None
    assert (stat.pid, stat.ppid) == (os.getpid(), os.getppid())
    assert os.getpid() in procfs.pids()


def test_the_peak_is_never_below_the_present_size():
    present, peak = procfs.rss_bytes(), procfs.peak_rss_bytes()
    assert present is not None
    assert peak is not None
    assert peak > 0
    assert present > 0


def test_resetting_the_peak_of_a_process_that_is_gone_is_false():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert procfs.reset_peak_rss(child) is False


def mapping(name: str, *, inode: int = 0, rss: int = 0, referenced: int = 0, anon: int = 0) -> str:
    """One mapping of /proc/PID/smaps; sizes in KiB, the counters in the kernel's order."""
    return (
        f"7f3a00000000-7f3a10000000 r-xp 00000000 fe:00 {inode}    {name}\n"
        f"Size:            1048576 kB\n"
        f"Rss:             {rss} kB\n"
        f"Pss:             {rss} kB\n"
        f"Referenced:      {referenced} kB\n"
        f"Anonymous:       {anon} kB\n"
        f"AnonHugePages:         0 kB\n"
        f"VmFlags: rd ex mr mw me\n"
    )


def referenced_bytes(tmp_path: Path, *mappings: str) -> int | None:
    directory = tmp_path / "proc/42"
    directory.mkdir(parents=True)
    (directory / "smaps").write_text("".join(mappings))
    files = procfs.referenced_files(42, root=tmp_path)
    return None if files is None else sum(file.referenced_bytes for file in files)


def test_touched_pages_of_files_are_summed_whatever_the_file_is_called(tmp_path):
    assert referenced_bytes(
        tmp_path,
        mapping("/usr/lib/libc.so.6", inode=12, rss=100, referenced=40),
        mapping("/models/two words: weights (deleted)", inode=13, rss=2000, referenced=1000),
        mapping("/usr/lib/never touched.so", inode=14, rss=500),
    ) == (1040 << 10)


def test_anonymous_memory_and_shared_memory_are_no_files(tmp_path):
    touched = {"rss": 100, "referenced": 100}
    assert (
        referenced_bytes(
            tmp_path,
            mapping("", **touched, anon=100),
            mapping("[heap]", **touched, anon=100),
            mapping("[vdso]", rss=4, referenced=4),
            mapping("/dev/shm/psm_1", inode=7, **touched),
            mapping("/memfd:ring (deleted)", inode=8, **touched),
            mapping("/SYSV00000000 (deleted)", inode=9, **touched),
            mapping("/dev/zero (deleted)", inode=10, **touched),
        )
        == 0
    )


def test_private_copies_of_a_file_s_pages_are_left_out_and_never_hide_touched_ones(tmp_path):
    assert referenced_bytes(
        tmp_path,
        mapping("/a", inode=1, rss=100, referenced=100, anon=60),  # 40 pages are the file's
        mapping("/b", inode=2, rss=100, referenced=30, anon=60),  # they may be the 30 touched
        mapping("/c", inode=3, rss=100, referenced=100, anon=100),
    ) == ((40 + 30) << 10)


def test_references_that_cannot_be_read_are_none_and_not_zero(tmp_path):
    assert procfs.referenced_files(42, root=tmp_path) is None

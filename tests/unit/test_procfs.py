"""/proc, on the machine that runs the tests and on written trees."""

from __future__ import annotations

import os

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

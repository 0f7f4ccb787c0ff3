"""The folder of receipts: whole files, this user's alone, the newest hundred."""

from __future__ import annotations

import errno
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest

from fakes.receipt import BARE, full_receipt
from ullage.errors import Unreadable, Usage
from ullage.receipts import MOST, find, fix_folder, folder, load, names, new_name, write


def numbered(number: int) -> str:
    return f"20261130T120000Z-{number:06x}"


def test_a_receipt_is_read_back_as_it_was_written(tmp_path: Path):
    receipt = full_receipt()
    write(tmp_path / "receipts", receipt)
    assert load(tmp_path / "receipts", receipt.name) == receipt


def test_the_file_and_the_folder_are_this_user_s_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        path = write(tmp_path / "state" / "receipts", BARE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_later_receipt_of_the_same_start_takes_the_place_of_the_earlier(tmp_path: Path):
    write(tmp_path, BARE)
    write(tmp_path, replace(BARE, model="other"))
    assert [path.name for path in tmp_path.iterdir()] == [f"{BARE.name}.json"]
    assert load(tmp_path, BARE.name).model == "other"


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, BARE)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, replace(BARE, model="other"))
    assert [path.name for path in tmp_path.iterdir()] == [f"{BARE.name}.json"]
    assert load(tmp_path, BARE.name) == BARE


def test_a_hundred_are_kept_and_the_oldest_go_first(tmp_path: Path):
    for number in range(MOST + 5):
        write(tmp_path, replace(BARE, name=numbered(number)))
    assert names(tmp_path) == [numbered(number) for number in range(5, MOST + 5)]


def test_many_that_write_at_once_leave_a_hundred_whole_ones(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        receipts = [replace(BARE, name=numbered(number)) for number in range(2 * MOST)]
        list(pool.map(lambda receipt: write(tmp_path, receipt), receipts))
    write(tmp_path, replace(BARE, name=numbered(2 * MOST)))
    assert len(names(tmp_path)) == len(list(tmp_path.iterdir())) == MOST
    for name in names(tmp_path):
        assert load(tmp_path, name).name == name


def test_files_that_are_not_receipts_are_neither_listed_nor_removed(tmp_path: Path):
    others = {"notes.json", "20261130.json", ".hidden.draft", "x.txt"}
    for name in others:
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (0, 0))
    for number in range(MOST + 1):
        write(tmp_path, replace(BARE, name=numbered(number)))
    assert others < {path.name for path in tmp_path.iterdir()}
    assert len(names(tmp_path)) == MOST


def test_a_draft_of_a_start_that_was_ended_is_removed_once_it_is_an_hour_old(tmp_path: Path):
    old, new = (tmp_path / f".{numbered(number)}.draft" for number in (1, 2))
    for draft in (old, new):
        draft.write_text("{")
    hour_ago = time.time() - 3700
    os.utime(old, (hour_ago, hour_ago))
    write(tmp_path, BARE)
    assert (old.exists(), new.exists()) == (False, True)
    assert names(tmp_path) == [BARE.name]


def test_names_sort_by_time_and_differ_within_a_second():
    assert len({new_name() for _ in range(100)}) == 100
    assert new_name() > BARE.name


def test_where_they_are_kept():
    default = platformdirs.user_state_path("ullage") / "receipts"
    assert (folder({}), folder({"ULLAGE_RECEIPTS": ""})) == (default, default)
    assert folder({"ULLAGE_RECEIPTS": "1"}) == default
    assert folder({"ULLAGE_RECEIPTS": "0"}) is None
    assert folder({"ULLAGE_RECEIPTS": "/var/receipts"}) == Path("/var/receipts")


def test_a_home_is_expanded_and_a_relative_path_is_of_the_process_that_starts_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", "/home/me")
    assert folder({"ULLAGE_RECEIPTS": "~/kept"}) == Path("/home/me/kept")
    environment = {"ULLAGE_RECEIPTS": "kept"}
    monkeypatch.chdir(tmp_path)
    fix_folder(environment)
    monkeypatch.chdir("/")
    assert folder(environment) == tmp_path / "kept"
    with pytest.raises(Usage, match="Set it to an absolute path"):
        folder({"ULLAGE_RECEIPTS": "~no such user/kept"})


@pytest.mark.parametrize("switch", [{}, {"ULLAGE_RECEIPTS": "0"}])
def test_what_is_no_folder_stays_as_it_is(switch: dict[str, str]):
    environment = dict(switch)
    fix_folder(environment)
    assert environment == switch


def test_one_is_found_by_its_name_or_as_the_latest(tmp_path: Path):
    for number in (2, 1):
        write(tmp_path, replace(BARE, name=numbered(number)))
    assert find(tmp_path, "latest") == numbered(2)
    assert find(tmp_path, numbered(1)) == numbered(1)
    with pytest.raises(Usage, match=r"no receipt '\.\./x'"):
        find(tmp_path, "../x")
    with pytest.raises(Usage, match="Start an engine"):
        find(tmp_path / "absent", "latest")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "ullage.receipt/2"}', "\0"])
def test_a_file_that_is_no_receipt_is_named(tmp_path: Path, content: str):
    path = tmp_path / f"{BARE.name}.json"
    path.write_text(content)
    with pytest.raises(Unreadable, match=f"{path.name} is no receipt of this version"):
        load(tmp_path, BARE.name)


def test_a_receipt_of_a_later_version_with_new_keys_is_read(tmp_path: Path):
    path = write(tmp_path, BARE)
    path.write_text(path.read_text().replace("{", '{"colour": "blue",', 1))
    assert load(tmp_path, BARE.name) == BARE

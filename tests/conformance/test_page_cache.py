"""The page cache of this kernel: files can be made cold and warm, and asked about."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from ullage.drivers import pagecache
from ullage.units import MIB


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """8 MiB, written back, on a file system that the page cache serves."""
    path = tmp_path / "file"
    with path.open("wb") as out:
        out.write(os.urandom(8 * MIB))
        out.flush()
        os.fsync(out.fileno())
    pagecache.drop_file(path)
    if pagecache.resident_bytes(path) != 0:
        pytest.skip("this file system keeps its files in memory (tmpfs)")
    return path


def test_a_file_that_was_read_is_in_the_cache(file: Path) -> None:
    pagecache.read_file(file)
    assert pagecache.resident_bytes(file) == 8 * MIB


def test_a_dropped_file_is_out_of_the_cache(file: Path) -> None:
    pagecache.read_file(file)
    pagecache.drop_file(file)
    assert pagecache.resident_bytes(file) == 0


def test_a_mapped_file_stays_whatever_is_dropped(file: Path) -> None:
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as mapped,
    ):
        assert sum(mapped[:: mmap.PAGESIZE]) > 0
        pagecache.drop_file(file)
        assert pagecache.resident_bytes(file) == 8 * MIB


def test_an_empty_file_has_nothing_in_the_cache(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert pagecache.resident_bytes(tmp_path / "empty") == 0

"""What stayed in memory although it should be cold."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.compare import files
from ullage.compare.files import prepare
from ullage.units import MIB


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two large files and a small one; the page cache of this machine is left alone."""
    for name, size in (("a.safetensors", 2 * MIB), ("b.safetensors", 3 * MIB), ("config.json", 9)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    monkeypatch.setattr(files, "engine_directories", list)
    monkeypatch.setattr(files.pagecache, "drop_all", lambda: True)
    return tmp_path


def kept(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int | None]) -> None:
    monkeypatch.setattr(files.pagecache, "resident_bytes", lambda path: sizes[path.name])


def test_it_is_the_sum_over_the_large_files(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(monkeypatch, {"a.safetensors": MIB, "b.safetensors": 2 * MIB})
    assert prepare("cold", model) == 3 * MIB


def test_one_file_that_the_kernel_does_not_tell_of_makes_it_unknown(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(monkeypatch, {"a.safetensors": MIB, "b.safetensors": None})
    assert prepare("cold", model) is None


def test_warm_files_are_no_question(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(monkeypatch, {})
    assert prepare("warm", model) is None

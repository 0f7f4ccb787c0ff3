"""Fragments become a release; nothing is lost on the way."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changelog", ROOT / "tools" / "changelog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


changelog = load()


def project(folder: Path, **fragments: str) -> Path:
    (folder / "changelog.d").mkdir()
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog.MARK}\n## 0.1.0 - old\n")
    for name, text in fragments.items():
        (folder / "changelog.d" / f"{name.replace('__', '.')}.md").write_text(text + "\n")
    return folder


def test_a_release_stands_above_the_older_ones_and_uses_the_fragments_up(tmp_path: Path):
    root = project(tmp_path, b__fixed="It no longer fails.", a__added="It can fly.")
    changelog.release(root, "0.2.0", "2027-01-31")
    text = (root / "CHANGELOG.md").read_text()
    places = [
        text.index(part)
        for part in ("## 0.2.0 - 2027-01-31", "- It can fly.", "- It no longer fails.", "## 0.1.0")
    ]
    assert places == sorted(places)
    assert list((root / "changelog.d").iterdir()) == []


def test_without_fragments_nothing_is_written(tmp_path: Path):
    root = project(tmp_path)
    before = (root / "CHANGELOG.md").read_text()
    with pytest.raises(ValueError, match="nothing to release"):
        changelog.release(root, "0.2.0", "2027-01-31")
    assert (root / "CHANGELOG.md").read_text() == before


def test_every_fragment_of_this_project_names_a_known_section():
    names = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    sections = "|".join(changelog.SECTIONS)
    assert all(re.fullmatch(rf"[a-z0-9-]+\.({sections})\.md", name) for name in names), names

"""Moves the fragments of changelog.d/ into CHANGELOG.md, under a new release.

python tools/changelog.py 0.2.0 2027-01-31
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SECTIONS: Final = ("added", "changed", "deprecated", "removed", "fixed", "security")
MARK: Final = "<!-- releases, newest first -->\n"


def fragments(folder: Path, section: str) -> list[Path]:
    return sorted(folder.glob(f"*.{section}.md"))


def release_text(folder: Path, version: str, date: str) -> str:
    """The release's part of the changelog: a list of sentences under each section that has any."""
    parts = [f"## {version} - {date}\n"]
    for section in SECTIONS:
        sentences = [
            path.read_text(encoding="utf-8").strip() for path in fragments(folder, section)
        ]
        if sentences:
            items = "\n".join(f"- {sentence}" for sentence in sentences)
            parts.append(f"### {section.capitalize()}\n\n{items}\n")
    return "\n".join(parts)


def release(root: Path, version: str, date: str) -> None:
    """Writes the release, then removes the fragments.  Raises ValueError where there are none."""
    folder, changelog = root / "changelog.d", root / "CHANGELOG.md"
    used = [path for section in SECTIONS for path in fragments(folder, section)]
    if not used:
        raise ValueError("changelog.d/ holds no fragment: there is nothing to release")
    head, mark, rest = changelog.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"CHANGELOG.md has no line {MARK.strip()}")
    text = release_text(folder, version, date)
    changelog.write_text(f"{head}{mark}\n{text}{rest}", encoding="utf-8")
    for path in used:
        path.unlink()


if __name__ == "__main__":
    release(ROOT, *sys.argv[1:3])

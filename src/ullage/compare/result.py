"""The result so far on the disk: an interrupted comparison leaves what it had."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Final

from ullage.report.comparison import Comparison, document

RESULT: Final = "comparison.json"
_MODE: Final = 0o644


def write_result(comparison: Comparison, directory: Path) -> None:
    """Replace `comparison.json` in `directory` as a whole."""
    write_whole(directory / RESULT, json.dumps(document(comparison), indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """A reader finds the old text or the new one, never a part."""
    descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(scratch).chmod(_MODE)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise

"""Transparent huge pages, as the kernel says: /sys/kernel/mm/transparent_hugepage."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path("sys/kernel/mm/transparent_hugepage")


def advised_page_bytes(*, root: Path = Path("/")) -> int | None:
    """Size of the huge page that MADV_HUGEPAGE asks for; None where the kernel gives none.

    `enabled` reads "always [madvise] never", the brackets round the one in force.
    """
    try:
        enabled = (root / _FOLDER / "enabled").read_text()
        size_bytes = int((root / _FOLDER / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return None
    return None if "[never]" in enabled else size_bytes

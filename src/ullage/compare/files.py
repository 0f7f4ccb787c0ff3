"""The page-cache state before a start: cold (a container's first start) or warm (a restart).

Whose group pays for the pages of the engine's and the model's files decides what a stock engine
finds free: cold, the engine reads them and its own group is charged; warm, they are in memory
already, charged to somebody else.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from ullage.drivers import pagecache

FileState = Literal["cold", "warm"]

# The directory that holds this package is read or dropped as a whole.
_ENGINE: Final = "vllm"
_LARGE_BYTES: Final = (
    1 << 20
)  # libraries and weights; asking about thousands of small files is slow
_LOADED: Final = (".so", ".py", ".pyc", ".json")


def prepare(state: FileState, model: Path) -> int | None:
    """Set the state for `model` and the engine of this interpreter.

    Returns the bytes of their files that stayed in memory although they should be cold: the kernel
    does not drop what another process maps, such as an engine that runs beside this one.  None for
    warm files, and where the kernel does not tell this user.
    """
    files = list(_files(model))
    if state == "warm":
        _each(pagecache.read_file, files)
        return None
    if not pagecache.drop_all():
        _each(pagecache.drop_file, files)
    return _resident_bytes(files)


def _resident_bytes(files: Iterable[Path]) -> int | None:
    """Of the large ones.  None where one went away meanwhile, or is not ours to ask."""
    try:
        large = [path for path in files if path.stat().st_size >= _LARGE_BYTES]
        sizes = [pagecache.resident_bytes(path) for path in large]
    except OSError:
        return None
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _each(act: Callable[[Path], None], files: Iterable[Path]) -> None:
    for path in files:
        with contextlib.suppress(OSError):  # a file that went away, or is not ours to read
            act(path)


def _files(model: Path) -> Iterator[Path]:
    yield from (path for path in sorted(model.rglob("*")) if path.is_file())
    for directory in engine_directories():
        for path in sorted(directory.rglob("*")):
            if path.is_file() and (path.suffix in _LOADED or ".so." in path.name):
                yield path


def engine_directories() -> list[Path]:
    """The site-packages directory of the engine, without importing it; empty without an engine."""
    spec = importlib.util.find_spec(_ENGINE)
    if spec is None or spec.origin is None:
        return []
    return [Path(spec.origin).parent.parent]

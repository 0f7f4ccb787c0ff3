"""What torch compiles during a start: can it, and the files that memory must not go on holding."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir


def is_possible() -> bool:
    """Is there a C++ compiler that inductor takes?"""
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True


def write_out(since_s: float) -> int:
    """Have the disk take what was written since `since_s` (Unix time).  Returns the files.

    Inductor precompiles a header of over 100 MB.  Its pages are dirty for half a minute
    (vm.dirty_expire_centisecs), and dirty pages are not available.
    """
    # Inductor keeps precompiled headers in its default place, wherever its cache is.
    fresh = [
        path for place in {cache_dir(), default_cache_dir()} for path in _files(place, since_s)
    ]
    for path in fresh:
        _sync(path)
    return len(fresh)


def _files(directory: str, since_s: float) -> Iterator[Path]:
    """Others share the directory: what is renamed or removed meanwhile is not ours to write."""
    for folder, _, names in os.walk(directory):  # skips a folder that it cannot list
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_mtime >= since_s:
                    yield path


def _sync(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""What an engine that was killed left behind: groups, mounts, shared memory, files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from ullage.drivers import sysfs

# What Python's multiprocessing, torch and vLLM leave in any engine.
_STOCK: Final = re.compile(r"(vllm_dist_|psm_|sem\.mp-|torch|pymp-|tmp|[0-9a-f-]{36}$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The folders that the engine was given for what it keeps outside its memory."""

    shm: Path
    tmp: Path
    runtime: Path
    state: Path

    @staticmethod
    def below(scratch: Path, shm: Path) -> Places:
        places = Places(
            shm=shm, tmp=scratch / "tmp", runtime=scratch / "runtime", state=scratch / "state"
        )
        for place in (places.tmp, places.runtime, places.state):
            place.mkdir(mode=0o700)
        return places


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """`files` as place/name."""

    groups: frozenset[str] = frozenset()
    mounts: frozenset[str] = frozenset()
    segments: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()

    def beyond(self, before: Found) -> Found:
        """What was not there before."""
        names = [each.name for each in fields(self)]
        return Found(**{name: getattr(self, name) - getattr(before, name) for name in names})


def look(places: Places, parents: Iterable[Path]) -> Found:
    """What is there now, of this process's doing.  `parents`: where groups may have been made."""
    own = f"ullage-{os.getpid()}-"
    mounts = (sysfs.read_optional("/proc/self/mounts") or "").splitlines()
    return Found(
        groups=frozenset(
            str(path) for parent in parents for path in parent.glob(f"{own}*") if path.is_dir()
        ),
        mounts=frozenset(line for line in mounts if "ullage" in line),
        segments=frozenset(_segments()),
        files=frozenset(_files(places)),
    )


def _segments() -> Iterable[str]:
    """System V shared memory, by id: the second column (proc_sysvipc(5))."""
    lines = (sysfs.read_optional("/proc/sysvipc/shm") or "").splitlines()[1:]
    return (line.split()[1] for line in lines)


def _files(places: Places) -> Iterable[str]:
    for each in fields(places):
        place = getattr(places, each.name)
        yield from (
            f"{each.name}/{path.relative_to(place)}"
            for path in place.rglob("*")
            if not path.is_dir()
        )


def size_bytes(folder: Path) -> int:
    """Memory or disk behind the files of `folder`; a file's length may be more (stat(2))."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def is_stock(file: str) -> bool:
    """Is it what an engine without ullage leaves as well?"""
    place, _, name = file.partition("/")
    return place in ("shm", "tmp") and "ullage" not in name and _STOCK.match(name) is not None


def by_owner(files: Iterable[str]) -> Mapping[str, list[str]]:
    """`stock`: of those kinds that an engine without ullage leaves; `ullage`: all others."""
    listed = sorted(files)
    return {
        "stock": [file for file in listed if is_stock(file)],
        "ullage": [file for file in listed if not is_stock(file)],
    }

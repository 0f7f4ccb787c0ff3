"""Read kernel files: one value, or lines of keys and numbers.

Every path is given as the kernel names it ("/proc/meminfo") and looked up below `root`, so that
the tree of another machine can stand in for this one.  In such a tree an empty file
`NAME.EPERM` says that reading NAME failed there with EPERM.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from ullage.errors import Unreadable
from ullage.units import KIB

REAL_ROOT: Final = Path("/")

# A process that ends between open and read answers ESRCH, a removed cgroup ENODEV.
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV})

_MAY_NOT_HINT: Final = "Run as a user who may read it, or make it readable in the container."
_OFF_HINT: Final = "The kernel does not offer it here."


def below(root: Path, path: str) -> Path:
    """Where `path`, as the kernel names it, lies in the tree at `root`."""
    return root / path.lstrip("/")


def read_text(path: str, *, root: Path = REAL_ROOT) -> str | None:
    """The file's text; None where there is no such file (any more).

    Raises Unreadable where the kernel refuses; its cause is the OSError with the errno.
    """
    file = below(root, path)
    try:
        if root != REAL_ROOT:
            _raise_recorded_refusal(file)
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        hint = _MAY_NOT_HINT if isinstance(error, PermissionError) else _OFF_HINT
        raise Unreadable(
            f"read({path}) failed with {_errno_name(error)}: {error.strerror}. {hint}"
        ) from error


def read_optional(path: str, *, root: Path = REAL_ROOT) -> str | None:
    """The file's text; None where it is absent and also where the kernel refuses to say."""
    try:
        return read_text(path, root=root)
    except Unreadable:
        return None


def _errno_name(error: OSError) -> str:
    # Python calls 95 ENOTSUP; the kernel's own name for it is EOPNOTSUPP.
    if error.errno == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"
    return errno.errorcode.get(error.errno or 0, str(error.errno))


def _raise_recorded_refusal(file: Path) -> None:
    for refusal in file.parent.glob(f"{file.name}.E*"):
        number = getattr(errno, refusal.suffix[1:], None)
        if isinstance(number, int):
            raise OSError(number, os.strerror(number), str(file))


def read_number(path: str, *, root: Path = REAL_ROOT) -> int | None:
    """A file that holds one number; None where it is absent, refused, or says "max".

    Raises Unreadable for anything else.
    """
    return _number(path, read_optional(path, root=root))


def read_limit(path: str, *, root: Path = REAL_ROOT) -> int | None:
    """A limit; None where there is none: no such file, or it says "max".

    Raises Unreadable for anything else, a refusal too: a limit that cannot be seen still kills.
    """
    return _number(path, read_text(path, root=root))


def _number(path: str, text: str | None) -> int | None:
    if text is None or text.strip() == "max":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise Unreadable(f"{path} says '{text.strip()}' where a number is expected.") from error


def read_counters(path: str, *, root: Path = REAL_ROOT) -> dict[str, int]:
    """A file of lines "key number", such as memory.stat; empty where it cannot be read."""
    text = read_optional(path, root=root) or ""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def sizes_bytes(text: str) -> dict[str, int]:
    """Bytes by key, from lines "Key:   123 kB".  Lines without that unit are not sizes.

    The kernel's "kB" are units of 1024 bytes.
    """
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        match value.split():
            case [number, "kB"]:
                found[key] = int(number) * KIB
    return found

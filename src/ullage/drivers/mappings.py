"""A process's mappings, one by one, with the memory behind each: /proc/PID/smaps.

Source: Documentation/filesystems/proc.rst.  Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ullage.drivers import sysfs
from ullage.units import KIB

Pid = int | str  # a number, or "self"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapping:
    """`device` and `inode` name the file on this machine; the inode is 0 where there is none."""

    start_bytes: int  # addresses
    stop_bytes: int
    permissions: str  # "rw-p"
    device: str  # "fe:00"
    inode: int
    name: str  # a path, "[heap]", or "" for anonymous memory
    present_bytes: int
    referenced_bytes: int
    anonymous_bytes: int  # private copies of file pages as well


def read(pid: Pid = "self", *, root: Path = sysfs.REAL_ROOT) -> Sequence[Mapping] | None:
    """By address.  None where unreadable."""
    text = sysfs.read_optional(f"/proc/{pid}/smaps", root=root)
    return None if text is None else list(_mappings(text))


def _mappings(text: str) -> Iterator[Mapping]:
    header: list[str] = []
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if " " in key:  # "7f3a...-7f3b... r-xp 00000000 fe:00 1234   /usr/lib/libc.so.6"
            header = line.split(maxsplit=5)
        elif key in ("Rss", "Referenced"):
            sizes[key] = int(value.split()[0]) * KIB
        elif key == "Anonymous":  # follows both
            start, _, stop = header[0].partition("-")
            yield Mapping(
                start_bytes=int(start, 16),
                stop_bytes=int(stop, 16),
                permissions=header[1],
                device=header[3],
                inode=int(header[4]),
                name=header[5] if len(header) == 6 else "",
                present_bytes=sizes["Rss"],
                referenced_bytes=sizes["Referenced"],
                anonymous_bytes=int(value.split()[0]) * KIB,
            )

"""What /proc says of the machine's memory and of each process.  Sizes are bytes.

Source: proc(5); Documentation/filesystems/proc.rst for smaps_rollup and clear_refs.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.drivers import mappings, sysfs
from ullage.drivers.mappings import Mapping, Pid
from ullage.errors import Unreadable

_LIMIT: Final = re.compile(r"(?P<name>Max .+?)\s+(?P<soft>\d+)\s+\S+\s+bytes\s*")
_PRESSURE: Final = re.compile(r"(?P<who>some|full) avg10=(?P<percent>\d+\.\d+) ")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessStat:
    """Who a process is.  `start_time_ticks` tells a reused pid from the old one."""

    pid: int
    name: str
    state: str  # "Z": ended, holds no memory, waits to be collected
    ppid: int
    start_time_ticks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferencedFile:
    """One mapping of a file; `device` and `inode` name the file on this machine."""

    device: str  # "fe:00"
    inode: int
    is_code: bool
    referenced_bytes: int


def boot_id(*, root: Path = sysfs.REAL_ROOT) -> str | None:
    """Random, new with each boot (random(4)); None where unreadable."""
    text = sysfs.read_optional("/proc/sys/kernel/random/boot_id", root=root)
    return None if text is None else text.strip()


def pid_namespace() -> str | None:
    """In which namespace this process's pids mean something: "pid:[4026531836]"."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def meminfo(*, root: Path = sysfs.REAL_ROOT) -> dict[str, int]:
    """/proc/meminfo.  In a container it still shows the host.  Empty where unreadable."""
    return sysfs.sizes_bytes(sysfs.read_optional("/proc/meminfo", root=root) or "")


def pids(*, root: Path = sysfs.REAL_ROOT) -> list[int]:
    """Every process that is visible from here, by number."""
    try:
        entries = list(sysfs.below(root, "/proc").iterdir())
    except FileNotFoundError:
        return []
    return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())


def stat(pid: Pid, *, root: Path = sysfs.REAL_ROOT) -> ProcessStat | None:
    """/proc/PID/stat; None where there is no such process."""
    text = sysfs.read_optional(f"/proc/{pid}/stat", root=root)
    if not text:
        return None
    # The name stands in parentheses and may itself contain spaces and parentheses.
    head, _, tail = text.rpartition(")")
    number, _, name = head.partition(" (")
    fields = tail.split()
    return ProcessStat(
        pid=int(number),
        name=name,
        state=fields[0],
        ppid=int(fields[1]),
        start_time_ticks=int(fields[19]),
    )


def status(pid: Pid = "self", *, root: Path = sysfs.REAL_ROOT) -> dict[str, int]:
    """The sizes in /proc/PID/status (VmRSS, VmHWM, RssAnon, ...).  Empty where unreadable.

    Kernel threads have none.
    """
    return sysfs.sizes_bytes(sysfs.read_optional(f"/proc/{pid}/status", root=root) or "")


def allowed_memory_nodes(pid: Pid = "self", *, root: Path = sysfs.REAL_ROOT) -> str | None:
    """NUMA nodes that the process may take memory from, such as "0-1,3"; None where unreadable."""
    text = sysfs.read_optional(f"/proc/{pid}/status", root=root) or ""
    for line in text.splitlines():
        if line.startswith("Mems_allowed_list:"):
            return line.partition(":")[2].strip()
    return None


def limits_bytes(*, root: Path = sysfs.REAL_ROOT) -> dict[str, int]:
    """This process's soft limits that are sizes, by the kernel's name ("Max address space").

    What is unlimited is left out.  Empty where unreadable.
    """
    text = sysfs.read_optional("/proc/self/limits", root=root) or ""
    rows = (_LIMIT.fullmatch(line) for line in text.splitlines())
    return {row["name"]: int(row["soft"]) for row in rows if row is not None}


def overcommit_mode(*, root: Path = sysfs.REAL_ROOT) -> int | None:
    """0, 1 or 2 (Documentation/admin-guide/sysctl/vm.rst); None where unreadable."""
    return sysfs.read_number("/proc/sys/vm/overcommit_memory", root=root)


def pressure(path: str, *, root: Path = sysfs.REAL_ROOT) -> dict[str, float]:
    """Percent of the last 10 s, by "some" and "full".  Empty where it is not measured.

    Lines read "some avg10=0.00 avg60=0.00 avg300=0.00 total=0".
    """
    text = sysfs.read_optional(path, root=root) or ""
    rows = (_PRESSURE.match(line) for line in text.splitlines())
    return {row["who"]: float(row["percent"]) for row in rows if row is not None}


def smaps_rollup(pid: Pid = "self", *, root: Path = sysfs.REAL_ROOT) -> dict[str, int]:
    """The sums over all mappings, Pss among them.  Empty where unreadable (another user's).

    Pss divides a shared page among the processes that map it, so sums over processes are true.
    """
    return sysfs.sizes_bytes(sysfs.read_optional(f"/proc/{pid}/smaps_rollup", root=root) or "")


def rss_bytes(pid: Pid = "self") -> int | None:
    """Memory that the process has mapped and present, shared pages included."""
    return status(pid).get("VmRSS")


def peak_rss_bytes(pid: Pid = "self") -> int | None:
    """The highest `rss_bytes` so far, or since `reset_peak_rss`."""
    return status(pid).get("VmHWM")


def reset_peak_rss(pid: Pid = "self") -> bool:
    """Let `peak_rss_bytes` start again from the current size.  False where the kernel has no such
    switch (built without CONFIG_PROC_PAGE_MONITOR) or the process is gone.

    Raises Unreadable where it is refused.
    """
    return _clear_refs(pid, "5")


def forget_file_references(pid: Pid = "self") -> bool:
    """Let `referenced_files` start again from nothing.  False and Unreadable as above.

    Clearing leaves the processor's cached translations alone, and a page that is found there is not
    marked again: the hottest pages would stay unseen.  Clearing the soft-dirty bits as well ("4")
    flushes them (fs/proc/task_mmu.c); a kernel without CONFIG_MEM_SOFT_DIRTY refuses it.
    """
    cleared = _clear_refs(pid, "3")
    with suppress(Unreadable):
        _clear_refs(pid, "4")
    return cleared


def _clear_refs(pid: Pid, what: str) -> bool:
    """Source: Documentation/filesystems/proc.rst, /proc/PID/clear_refs."""
    path = Path(f"/proc/{pid}/clear_refs")
    try:
        path.write_text(what)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return False
        raise Unreadable(
            f"write({path}) failed: {error.strerror}. Only the process's own user may reset its "
            "peak; /proc must be mounted writable."
        ) from error
    return True


def referenced_files(
    pid: Pid = "self", *, root: Path = sysfs.REAL_ROOT
) -> Sequence[ReferencedFile] | None:
    """Mapped file pages that the process touched since `forget_file_references`, by file.

    Private copies of file pages and shared memory are not file pages.  Which of a mapping's touched
    pages are copies is not said: as many as can be count as file pages.  Where a file is mapped by
    huge pages, one touch counts for all of its 2 MiB.  None where unreadable.
    """
    found = mappings.read(pid, root=root)
    if found is None:
        return None
    return [_referenced_file(mapping) for mapping in found if _maps_file(mapping)]


def _referenced_file(mapping: Mapping) -> ReferencedFile:
    file_bytes = min(mapping.referenced_bytes, mapping.present_bytes - mapping.anonymous_bytes)
    return ReferencedFile(
        device=mapping.device,
        inode=mapping.inode,
        is_code="x" in mapping.permissions,
        referenced_bytes=file_bytes,
    )


_SHARED_MEMORY: Final = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero")  # noqa: S108 - names in maps


def _maps_file(mapping: Mapping) -> bool:
    return mapping.inode != 0 and not mapping.name.startswith(_SHARED_MEMORY)

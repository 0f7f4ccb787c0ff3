"""What a device reader must answer.  Read this file first.

A reader knows one platform.  It says which devices are here, and what each source says about
their memory.  It decides nothing: sources may disagree, and `ullage.accounting.exact` settles
that.  None means that a source did not say; it is never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Platform = Literal["host"]

Scope = Literal[
    "host",  # the machine's memory
    "nodes",  # that of the NUMA nodes that the process may use
    "group",  # what a memory group may use of it
    "process",  # what one process may map, whatever memory is behind it
    "commit",  # what the kernel may promise to all processes
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    platform: Platform
    index: int  # as the driver counts
    name: str
    pci_bus_id: str | None = None  # None: not on PCI


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryParts:
    """What the memory of one source consists of, in the kernel's own terms.

    The kernel's `file` includes shmem (tmpfs, shared memory), which lies on the anonymous lists
    and cannot be reclaimed without swap.  `mapped_file_bytes` includes mapped shmem too.
    """

    anon_bytes: int | None = None
    shmem_bytes: int | None = None
    file_bytes: int | None = None
    inactive_file_bytes: int | None = None
    active_file_bytes: int | None = None
    mapped_file_bytes: int | None = None
    dirty_bytes: int | None = None
    writeback_bytes: int | None = None
    unevictable_bytes: int | None = None  # locked pages, anonymous ones included
    kernel_bytes: int | None = None  # slab_reclaimable_bytes included
    slab_reclaimable_bytes: int | None = None
    hugetlb_bytes: int | None = None  # the administrator's huge page pool: not free, used or not
    available_bytes: int | None = None  # meminfo's MemAvailable
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    file_refaults: int | None = None  # file pages read again soon after they were reclaimed


@dataclass(frozen=True, kw_only=True, slots=True)
class Pressure:
    """Share of the last ten seconds in which some process waited for memory, or all did.

    Source: Documentation/accounting/psi.rst.
    """

    some_percent: float
    full_percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one source said of one device's memory at one moment."""

    source: str  # "meminfo", "cgroup2:/kubepods.slice/pod1", "NUMA nodes 0,1", "RLIMIT_AS"
    scope: Scope
    total_bytes: int | None = None  # of a cgroup: its limit; None where it has none
    used_bytes: int | None = None
    free_bytes: int | None = None
    parts: MemoryParts = field(default_factory=MemoryParts)
    pressure: Pressure | None = None  # None: not measured there

    @property
    def counts_memory(self) -> bool:
        """Are its bytes pages in memory, rather than addresses or promises?"""
        return self.scope in ("host", "nodes", "group")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessReading:
    """One process's present memory.  None where the kernel does not let us see it.

    From "smaps_rollup", pages that several processes map are shared out among them; from
    "status" they count in full in each.
    """

    pid: int
    ppid: int
    name: str
    start_time_ticks: int
    anon_bytes: int | None
    shmem_bytes: int | None
    file_bytes: int | None
    source: Literal["smaps_rollup", "status"] | None


class DeviceReader(Protocol):
    """A platform's module is its reader: `ullage.devices.host` has these two functions."""

    def find(self) -> Sequence[Device]: ...

    def read(self, device: Device, /) -> Sequence[Reading]: ...

"""Virtual memory of a Linux process: a reservation is PROT_NONE, a commit populates it.

- MADV_POPULATE_WRITE (Linux 5.14) faults every page in, so that a later touch cannot be the one
  that meets the limit.  Over a cgroup's limit the kernel ends the process by SIGKILL, not by
  ENOMEM: hence `overcommit_kills`, and `vmem.region` looks before each step.
- A committed range ends where access ends, so the kernel never lets a huge page reach beyond it.
- Its ENOMEM leaves the pages before the failing one.  Decommitting by a fixed mapping over the
  range is atomic, and frees those too.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Final

from ullage.drivers import libc, thp
from ullage.errors import MemoryRefused
from ullage.units import MIB
from ullage.vmem.base import Capabilities

_STEP_BYTES: Final = 64 * MIB


def kernel_capabilities() -> Capabilities:
    """What this machine's kernel can do."""
    return Capabilities(
        granularity_bytes=mmap.PAGESIZE,
        huge_page_bytes=thp.advised_page_bytes(),
        step_bytes=_STEP_BYTES,
        overcommit_kills=True,
    )


class CpuMemory:
    """The process's own address space.  `capabilities` None: all that the kernel can do."""

    def __init__(self, capabilities: Capabilities | None = None) -> None:
        self._capabilities = capabilities or kernel_capabilities()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def reserve(self, size_bytes: int) -> int:
        address = libc.map_inaccessible(size_bytes)
        self._prefer_huge_pages(address, size_bytes)
        return address

    def commit(self, address: int, size_bytes: int) -> None:
        libc.protect(address, size_bytes, libc.PROT_READ_WRITE)
        libc.advise(address, size_bytes, libc.MADV_POPULATE_WRITE)

    def decommit(self, address: int, size_bytes: int) -> None:
        libc.remap_inaccessible(address, size_bytes)
        self._prefer_huge_pages(address, size_bytes)

    def zero(self, address: int, size_bytes: int) -> None:
        libc.zero(address, size_bytes)

    def release(self, address: int, size_bytes: int) -> None:
        libc.unmap(address, size_bytes)

    def _prefer_huge_pages(self, address: int, size_bytes: int) -> None:
        """A wish: where it is refused, small pages serve as well."""
        if self._capabilities.huge_page_bytes is not None:
            with suppress(MemoryRefused):
                libc.advise(address, size_bytes, libc.MADV_HUGEPAGE)

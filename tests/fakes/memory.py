"""Virtual memory that keeps exact books, and is as strict as the kernel is deadly."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from ullage.errors import MemoryRefused
from ullage.vmem.base import Capabilities

PAGE = 16


class Fatal(BaseException):
    """Where the kernel would have ended the process.  No `except Exception` may survive it."""


@dataclass
class FakeMemory:
    """A `VirtualMemory` of granules in a dictionary, of which at most `limit_bytes` may exist.

    `fail_after` primitives succeed, the next `refusals` are refused, and all after them succeed
    again.  A refused commit leaves the first half of its granules behind.  Breaking a precondition,
    touching what is not committed, two calls at once, and going over the limit are `Fatal`.
    """

    granularity_bytes: int = PAGE
    step_bytes: int = 4 * PAGE
    limit_bytes: int | None = None
    fail_after: int | None = None
    refusals: int = 1
    next_address: int = 1 << 20
    reserved: dict[int, int] = field(default_factory=dict)  # address -> size
    granules: dict[int, bytearray] = field(default_factory=dict)  # address -> content
    steps: list[tuple[int, int]] = field(default_factory=list)  # (address, size) of each commit
    _alone: threading.Lock = field(default_factory=threading.Lock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            granularity_bytes=self.granularity_bytes,
            huge_page_bytes=None,
            step_bytes=self.step_bytes,
            overcommit_kills=True,
        )

    @property
    def physical_bytes(self) -> int:
        return len(self.granules) * self.granularity_bytes

    def available(self) -> int | None:
        return None if self.limit_bytes is None else self.limit_bytes - self.physical_bytes

    def reserve(self, size_bytes: int) -> int:
        self._maybe_refuse()
        address = self.next_address
        self.next_address += size_bytes + self.granularity_bytes
        self.reserved[address] = size_bytes
        return address

    def commit(self, address: int, size_bytes: int) -> None:
        granules = self._granules(address, size_bytes)
        if any(granule in self.granules for granule in granules):
            raise Fatal("a part is committed already")
        half = granules[: (len(granules) + 1) // 2]
        self._back(half)
        self._maybe_refuse()
        self._back(granules[len(half) :])
        self.steps.append((address, size_bytes))
        if self.limit_bytes is not None and self.physical_bytes > self.limit_bytes:
            raise Fatal("killed: over the limit")

    def decommit(self, address: int, size_bytes: int) -> None:
        granules = self._granules(address, size_bytes)
        self._maybe_refuse()
        for granule in granules:
            self.granules.pop(granule, None)

    def zero(self, address: int, size_bytes: int) -> None:
        self._maybe_refuse()
        self.write(address, bytes(size_bytes))

    def release(self, address: int, size_bytes: int) -> None:
        if self.reserved.get(address) != size_bytes:
            raise Fatal("not a range that was reserved")
        self.decommit(address, size_bytes)
        del self.reserved[address]

    def read(self, address: int, size_bytes: int) -> bytes:
        return bytes(
            self._granule(each)[each % self.granularity_bytes]
            for each in range(address, address + size_bytes)
        )

    def write(self, address: int, content: bytes) -> None:
        for offset, byte in enumerate(content):
            each = address + offset
            self._granule(each)[each % self.granularity_bytes] = byte

    def _back(self, granules: range) -> None:
        self.granules.update({granule: bytearray(self.granularity_bytes) for granule in granules})

    def _granule(self, address: int) -> bytearray:
        try:
            return self.granules[address - address % self.granularity_bytes]
        except KeyError:
            raise Fatal(f"SIGSEGV at {address}") from None

    def _granules(self, address: int, size_bytes: int) -> range:
        inside = any(
            start <= address and address + size_bytes <= start + size
            for start, size in self.reserved.items()
        )
        aligned = address % self.granularity_bytes == size_bytes % self.granularity_bytes == 0
        if not inside or not aligned or size_bytes <= 0:
            raise Fatal(f"{size_bytes} bytes at {address} are no granules of one reservation")
        return range(address, address + size_bytes, self.granularity_bytes)

    def _maybe_refuse(self) -> None:
        if not self._alone.acquire(blocking=False):
            raise Fatal("two calls at once")
        try:
            time.sleep(0)  # lets another thread in, if one wants to
            if self.fail_after is not None:
                self._count_down(self.fail_after)
        finally:
            self._alone.release()

    def _count_down(self, left: int) -> None:
        if left > 0:
            self.fail_after = left - 1
            return
        self.refusals -= 1
        if self.refusals == 0:
            self.fail_after, self.refusals = None, 1
        raise MemoryRefused("refused on purpose")

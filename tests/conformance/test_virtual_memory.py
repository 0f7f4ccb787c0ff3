"""Virtual memory, one suite over implementations: the kernel's own, and the fake of the unit tests.

What stands behind a range is read from the kernel's count for exactly that range (/proc/self/smaps)
and from the fake's books.  Deadly and system-wide behaviour is the kernel's alone, in subprocesses.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fakes.memory import FakeMemory
from ullage.compare.container import container
from ullage.devices import host
from ullage.drivers import libc, procfs
from ullage.errors import MemoryRefused, NotEnforced
from ullage.units import GIB, MIB, TIB, align_down, align_up
from ullage.vmem.base import VirtualMemory
from ullage.vmem.cpu import CpuMemory, kernel_capabilities
from ullage.vmem.extents import Extent
from ullage.vmem.region import Region

SIZE = 64 * MIB
LIMIT = 256 * MIB
SOURCE = Path(host.__file__).parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Implementation:
    """Memory under test, and how to look at it from outside."""

    memory: VirtualMemory
    present_bytes: Callable[[int, int], int]  # behind (address, size)
    is_reserved: Callable[[int], bool]
    read: Callable[[int, int], bytes]
    write: Callable[[int, bytes], object]


def mappings(address: int, size_bytes: int) -> Iterator[dict[str, int]]:
    """The counters in /proc/self/smaps of every mapping that lies in the range, in bytes."""
    counters: dict[str, int] | None = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            start, stop = (int(each, 16) for each in first.split("-"))
            inside = start < address + size_bytes and address < stop
            counters = {} if inside else None
            if counters is not None:
                yield counters
        elif counters is not None and rest.strip().endswith("kB"):
            counters[first.rstrip(":")] = int(rest.split()[0]) * 1024


def counted(address: int, size_bytes: int, name: str) -> int:
    return sum(each[name] for each in [*mappings(address, size_bytes)])


def real() -> Implementation:
    return Implementation(
        memory=CpuMemory(),
        present_bytes=lambda address, size: counted(address, size, "Rss"),
        is_reserved=lambda address: bool(list(mappings(address, 1))),
        read=ctypes.string_at,
        write=lambda address, content: ctypes.memmove(address, content, len(content)),
    )


def fake() -> Implementation:
    memory = FakeMemory(granularity_bytes=64 * 1024, step_bytes=MIB)
    return Implementation(
        memory=memory,
        present_bytes=lambda address, size: sum(
            memory.granularity_bytes
            for granule in memory.granules
            if address <= granule < address + size
        ),
        is_reserved=lambda address: address in memory.reserved,
        read=memory.read,
        write=memory.write,
    )


@pytest.fixture(params=[real, fake])
def under_test(request: pytest.FixtureRequest) -> Implementation:
    return request.param()


@pytest.fixture
def address(under_test: Implementation) -> Iterator[int]:
    start = under_test.memory.reserve(SIZE)
    yield start
    under_test.memory.release(start, SIZE)


def test_a_reservation_has_no_memory_behind_it(under_test, address):
    assert under_test.is_reserved(address)
    assert under_test.present_bytes(address, SIZE) == 0


def test_a_commit_puts_exactly_its_size_behind_its_range_and_it_reads_as_zeros(under_test, address):
    granule = under_test.memory.capabilities.granularity_bytes
    under_test.memory.commit(address + granule, 5 * granule)
    assert under_test.present_bytes(address, SIZE) == 5 * granule
    assert under_test.read(address + granule, 5 * granule) == bytes(5 * granule)


def test_what_is_written_stays_while_neighbours_come_and_go(under_test, address):
    granule = under_test.memory.capabilities.granularity_bytes
    under_test.memory.commit(address + granule, granule)
    under_test.write(address + granule, b"live" * 100)
    under_test.memory.commit(address, granule)
    under_test.memory.commit(address + 2 * granule, granule)
    under_test.memory.decommit(address, granule)
    assert under_test.read(address + granule, 400) == b"live" * 100


def test_a_decommit_gives_the_memory_back_and_keeps_the_addresses(under_test, address):
    granule = under_test.memory.capabilities.granularity_bytes
    under_test.memory.commit(address, 8 * granule)
    under_test.memory.decommit(address + 2 * granule, 6 * granule)
    assert under_test.present_bytes(address, SIZE) == 2 * granule
    assert under_test.is_reserved(address)


def test_a_decommit_may_cover_what_is_not_committed(under_test, address):
    granule = under_test.memory.capabilities.granularity_bytes
    under_test.memory.commit(address + granule, granule)
    under_test.memory.decommit(address, SIZE)
    under_test.memory.decommit(address, SIZE)
    assert under_test.present_bytes(address, SIZE) == 0


def test_memory_that_comes_back_reads_as_zeros(under_test, address):
    granule = under_test.memory.capabilities.granularity_bytes
    under_test.memory.commit(address, granule)
    under_test.write(address, b"\xff" * granule)
    under_test.memory.decommit(address, granule)
    under_test.memory.commit(address, granule)
    assert under_test.read(address, granule) == bytes(granule)


def test_zeroing_reaches_its_bytes_and_no_others(under_test, address):
    granule = under_test.memory.capabilities.granularity_bytes
    under_test.memory.commit(address, granule)
    under_test.write(address, b"abcdef")
    under_test.memory.zero(address + 2, 3)
    assert under_test.read(address, 6) == b"ab\0\0\0f"


def test_a_released_range_is_gone(under_test):
    start = under_test.memory.reserve(SIZE)
    under_test.memory.commit(start, under_test.memory.capabilities.granularity_bytes)
    under_test.memory.release(start, SIZE)
    assert not under_test.is_reserved(start)
    assert under_test.present_bytes(start, SIZE) == 0


def test_steps_are_whole_granules(under_test):
    capabilities = under_test.memory.capabilities
    assert capabilities.step_bytes % capabilities.granularity_bytes == 0


def test_a_region_s_physical_bytes_are_what_is_present(under_test):
    region = Region(under_test.memory, SIZE)
    with ExitStack() as undo:
        undo.callback(region.close)
        region.commit([Extent(start=1, stop=3 * MIB), Extent(start=5 * MIB, stop=9 * MIB + 1)])
        assert under_test.present_bytes(region.address, SIZE) == region.physical_bytes
        region.decommit([Extent(start=2 * MIB, stop=6 * MIB)])
        assert under_test.present_bytes(region.address, SIZE) == region.physical_bytes
        assert region.physical_bytes > 0


# From here on: the kernel alone.


@pytest.fixture
def cpu() -> CpuMemory:
    return CpuMemory()


def rss_bytes() -> int:
    return procfs.status()["VmRSS"]


def test_the_process_grows_and_shrinks_by_exactly_what_is_committed(cpu):
    before = rss_bytes()
    with ExitStack() as undo:
        start = cpu.reserve(GIB)
        undo.callback(cpu.release, start, GIB)
        assert rss_bytes() == pytest.approx(before, abs=MIB)
        cpu.commit(start, SIZE)
        assert rss_bytes() == pytest.approx(before + SIZE, abs=MIB)
        cpu.decommit(start, SIZE)
        assert rss_bytes() == pytest.approx(before, abs=MIB)


def test_more_addresses_than_any_machine_has_memory_cost_nothing(cpu):
    before = rss_bytes()
    start = cpu.reserve(16 * TIB)
    cpu.release(start, 16 * TIB)
    assert rss_bytes() == pytest.approx(before, abs=MIB)


def test_more_addresses_than_the_processor_has_are_refused(cpu):
    with pytest.raises(MemoryRefused, match="ENOMEM"):
        cpu.reserve(1 << 62)


def test_a_commit_that_the_kernel_refuses_leaves_no_memory_behind(cpu):
    region = Region(cpu, SIZE)
    with ExitStack() as undo:
        undo.callback(region.close)
        libc.unmap(region.address + MIB, MIB)  # a hole
        with pytest.raises(MemoryRefused, match="ENOMEM"):
            region.commit([Extent(start=0, stop=2 * MIB)])
        assert counted(region.address, SIZE, "Rss") == region.physical_bytes == 0


def test_huge_pages_stand_behind_a_large_range_and_none_beyond_its_end(cpu):
    huge = cpu.capabilities.huge_page_bytes
    if huge is None:
        pytest.skip("this kernel gives no transparent huge pages")
    with ExitStack() as undo:
        start = cpu.reserve(SIZE)
        undo.callback(cpu.release, start, SIZE)
        inner = align_up(start, huge)
        ends_within_a_huge_page = inner - start + 8 * huge + 3 * cpu.capabilities.granularity_bytes
        cpu.commit(start, ends_within_a_huge_page)
        assert counted(start, SIZE, "Rss") == ends_within_a_huge_page
        given = counted(start, SIZE, "AnonHugePages")
        if given == 0 and plain_huge_bytes(huge) == 0:
            pytest.skip("this kernel has no huge page left to give")
        assert 0 < given <= 8 * huge

        # Pages that end within a huge page split it, and what is decommitted is really gone.
        cpu.decommit(inner + huge + 4096, ends_within_a_huge_page - (inner - start) - huge - 4096)
        assert counted(start, SIZE, "Rss") == inner - start + huge + 4096


def test_memory_is_taken_away_also_where_the_wish_for_huge_pages_is_refused(monkeypatch):
    advise = libc.advise

    def refuse_the_wish(address: int, size_bytes: int, advice: int) -> None:
        if advice == libc.MADV_HUGEPAGE:
            raise MemoryRefused("refused on purpose")
        advise(address, size_bytes, advice)

    monkeypatch.setattr(libc, "advise", refuse_the_wish)
    memory = CpuMemory(replace(kernel_capabilities(), huge_page_bytes=2 * MIB))
    region = Region(memory, SIZE)
    with ExitStack() as undo:
        undo.callback(region.close)
        region.commit([Extent(start=0, stop=4 * MIB)])
        region.decommit([Extent(start=MIB, stop=4 * MIB)])
        assert counted(region.address, SIZE, "Rss") == region.physical_bytes == MIB


def plain_huge_bytes(huge: int) -> int:
    """What the kernel gives to the plainest request for huge pages."""
    size = 8 * huge
    with ExitStack() as undo:
        start = libc.map_inaccessible(size)
        undo.callback(libc.unmap, start, size)
        libc.protect(start, size, libc.PROT_READ_WRITE)
        libc.advise(start, size, libc.MADV_HUGEPAGE)
        ctypes.memset(start, 1, size)
        return counted(start, size, "AnonHugePages")


def test_memory_that_grows_step_by_step_has_huge_pages_too(cpu):
    huge = cpu.capabilities.huge_page_bytes
    if huge is None or plain_huge_bytes(huge) == 0:
        pytest.skip("this kernel gives no huge pages now")
    region = Region(cpu, 3 * cpu.capabilities.step_bytes)
    with ExitStack() as undo:
        undo.callback(region.close)
        region.commit([Extent(start=0, stop=region.size_bytes)])
        last = align_down(region.address + region.size_bytes, huge)
        whole = last - align_up(region.address, huge)
        assert counted(region.address, region.size_bytes, "AnonHugePages") >= whole // 2


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_reading_what_is_not_committed_ends_the_process_instead_of_giving_zeros():
    read_after = (
        "import ctypes; from ullage.vmem.cpu import CpuMemory; memory = CpuMemory();"
        "start = memory.reserve(1 << 20); memory.commit(start, 4096 * 2);"
        "print(ctypes.string_at(start + 8191, 1), flush=True); {}; ctypes.string_at(start + {}, 1)"
    )
    beyond = run(read_after.format("pass", 8192))
    assert (beyond.returncode, beyond.stdout) == (-signal.SIGSEGV, "b'\\x00'\n")
    decommitted = run(read_after.format("memory.decommit(start, 8192)", 0))
    assert decommitted.returncode == -signal.SIGSEGV


def test_a_limit_of_the_address_space_refuses_the_reservation_by_name():
    code = (
        "import resource; from ullage.vmem.cpu import CpuMemory;"
        "from ullage.errors import MemoryRefused; memory = CpuMemory();"
        "limit = 1 << 30; resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try: memory.reserve(2 << 30)\n"
        "except MemoryRefused as refusal: print(refusal)"
    )
    answer = run(code)
    assert "ENOMEM" in answer.stdout, answer.stderr


# In a group of 256 MiB: ask for what does not fit, and live.  The first answers after the first
# commit, as many as the argument says, are from before somebody else took the memory.
OVER_THE_LIMIT = """
import itertools, os, sys
from ullage.accounting.exact import settle
from ullage.devices import host
from ullage.errors import OverAvailable
from ullage.vmem.cpu import CpuMemory, kernel_capabilities
from ullage.vmem.extents import Extent
from ullage.vmem.region import Region

MIB = 1 << 20
stale = iter([])
region = Region(
    CpuMemory(),
    1024 * MIB,
    available=lambda: next(stale, settle(host.read()).available_bytes),
)
region.commit([Extent(start=0, stop=32 * MIB)])
stale = itertools.repeat(1024 * MIB, int(sys.argv[1]))
try:
    region.commit([Extent(start=0, stop=512 * MIB)])
except OverAvailable:
    (present,) = host.read_processes([os.getpid()])
    print(region.physical_bytes // MIB, present.anon_bytes // MIB)
"""


@pytest.mark.parametrize("stale", [0, 1, 2])
def test_over_a_group_s_limit_the_process_lives_with_what_it_had(stale):
    try:
        with container(LIMIT) as inside:
            command = inside.command([sys.executable, "-c", OVER_THE_LIMIT, str(stale)])
            answer = subprocess.run(
                command,
                env=os.environ | {"PYTHONPATH": str(SOURCE)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert inside.group is not None
            kills = inside.group.oom_kills()
    except NotEnforced as refusal:
        pytest.skip(str(refusal))
    assert answer.returncode == 0, answer.stderr
    physical_mib, present_mib = map(int, answer.stdout.split())
    assert physical_mib == 32
    assert 32 <= present_mib < 64  # the rest is the interpreter
    assert kills in (0, None)


def test_without_a_look_at_what_is_available_the_kernel_would_have_killed():
    """Why `overcommit_kills` is true, and `available` is asked before each step."""
    code = (
        "from ullage.vmem.cpu import CpuMemory; memory = CpuMemory();"
        "start = memory.reserve(1 << 30); memory.commit(start, 512 << 20)"
    )
    try:
        with container(LIMIT) as inside:
            answer = subprocess.run(
                inside.command([sys.executable, "-c", code]),
                env=os.environ | {"PYTHONPATH": str(SOURCE)},
                timeout=60,
                check=False,
            )
    except NotEnforced as refusal:
        pytest.skip(str(refusal))
    assert answer.returncode == -signal.SIGKILL

"""What glibc's heap keeps of large steps, in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from ullage.drivers import steady_heap
from ullage.units import MIB

# Steps as an engine makes them: large blocks of another make-up each time, aligned as torch has
# them, beside small ones that come and go; in the end nothing is in use.  What the kernel had to
# give in the last step is told by the page faults.
PROGRAM = """
import ctypes, resource, sys
from ullage.drivers import malloc, steady_heap

libc = ctypes.CDLL(None)
libc.free.argtypes = [ctypes.c_void_p]
kept = steady_heap.keep_freed_memory() if sys.argv[1] != "as it is" else None
if sys.argv[1] == "everything":
    steady_heap.keep_everything()
parts = (2, 5, 1, 3, 1, 7, int(sys.argv[2]))

def block(size_bytes):
    address = ctypes.c_void_p()
    libc.posix_memalign(ctypes.byref(address), ctypes.c_size_t(64), ctypes.c_size_t(size_bytes))
    ctypes.memset(address, 1, size_bytes)
    return address

def step(unit_bytes):
    blocks = [[block(unit_bytes * part), block(72), block(200)] for part in parts]
    for each in (*blocks[::2], *blocks[1::2]):
        for address in each:
            libc.free(address)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    for unit_kib in (256, 1000, 640, 1024):
        step(unit_kib * 1024)
before = faults()
step(1024 * 1024)
print(kept, faults() - before, malloc.heap().cached_bytes)
"""
STEP_BYTES = 20 * MIB
LARGE_PARTS = 48  # MiB: glibc maps such a block on its own


def run(how: str, *, large_parts: int = 1, **variables: str) -> tuple[str, int, int]:
    """What `keep_freed_memory` said, page faults of the last step, and memory that is kept.

    The last block of each step has `large_parts` times the step's unit, which is 1 MiB at most.
    """
    names = (steady_heap.TUNABLES, "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, str(large_parts)],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults, cached_bytes = done.stdout.split()
    return kept, int(faults), int(cached_bytes)


@pytest.fixture(autouse=True)
def needs_glibc():
    if platform.libc_ver()[0] != "glibc" or "LD_PRELOAD" in os.environ:
        pytest.skip("glibc's allocator is not in charge here")


def without_thread_cache() -> dict[str, str]:
    return {steady_heap.TUNABLES: steady_heap.tunables_for_engines({})}


def test_a_steady_heap_keeps_a_step_s_memory_and_takes_none_for_the_next():
    kept, faults, cached_bytes = run("steady", **without_thread_cache())
    assert kept == "True"
    assert STEP_BYTES <= cached_bytes < 2 * STEP_BYTES
    assert faults < 100


def test_blocks_that_are_mapped_on_their_own_are_taken_anew_in_every_step():
    _, faults, _ = run("steady", large_parts=LARGE_PARTS, **without_thread_cache())
    assert faults > 100, "few where they are huge pages"


def test_a_heap_that_keeps_everything_has_the_largest_blocks_as_well():
    _, faults, cached_bytes = run("everything", large_parts=LARGE_PARTS, **without_thread_cache())
    assert faults < 100
    assert cached_bytes >= STEP_BYTES + (LARGE_PARTS - 1) * MIB


def test_the_heap_as_it_is_takes_the_memory_of_every_step_anew():
    _, faults, _ = run("as it is")
    assert faults > STEP_BYTES // 4096 // 4


def test_with_a_thread_cache_the_heap_is_not_called_steady():
    kept, faults, _ = run("steady")
    assert kept == "False"
    assert faults < 100, "it is kept all the same"


@pytest.mark.parametrize(
    "chosen",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {steady_heap.TUNABLES: "glibc.malloc.tcache_count=0:glibc.malloc.trim_threshold=131072"},
    ],
)
def test_thresholds_that_the_user_chose_stay(chosen: dict[str, str]):
    kept, faults, _ = run("steady", **chosen)
    assert kept == "False"
    assert faults > STEP_BYTES // 4096 // 4

"""Large blocks of the C heap, in processes of their own: what freeing them gives back."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from ullage.drivers import malloc, thp
from ullage.units import MIB

# A freed block of 30 MiB raises glibc's own threshold to 30 MiB.  Then large blocks in turn with
# small ones that stay, as a step of an engine makes them, and all the large ones are freed.
PROGRAM = """
import ctypes, sys
from ullage.drivers import malloc, procfs
from ullage.units import MIB

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def block(size_bytes):
    address = libc.malloc(size_bytes)
    ctypes.memset(address, 1, size_bytes)
    return address

def anon_bytes():
    return procfs.rss_bytes("self")

if sys.argv[1] == "mapped" and not malloc.map_large_blocks(2 * MIB):
    sys.exit(9)
libc.free(block(30 * MIB))
before = anon_bytes()
blocks = [(block(3 * MIB), block(65536))[0] for _ in range(40)]
taken = anon_bytes() - before
with open("/proc/self/smaps_rollup") as lines:
    huge_kib = next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
for address in blocks:
    libc.free(address)
print(taken, anon_bytes() - before - 40 * 65536, huge_kib * 1024)
"""
PAYLOAD_BYTES = 40 * 3 * MIB


def run(how: str, **variables: str) -> tuple[int, int, int]:
    """Bytes taken by the blocks, still there after freeing them, and in huge pages before that."""
    plain = {name: value for name, value in os.environ.items() if name != malloc.TUNABLES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    taken, kept, huge = (int(word) for word in done.stdout.split())
    assert taken > PAYLOAD_BYTES - MIB
    return taken, kept, huge


def needs_huge_pages() -> None:
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        pytest.skip(f"needs glibc 2.35 or later, and this is {name} {version}")
    if thp.advised_page_bytes() is None:
        pytest.skip("this kernel gives no huge pages on request")


def test_blocks_that_are_mapped_are_huge_pages_and_leave_nothing_behind():
    needs_huge_pages()
    variables = {malloc.TUNABLES: malloc.with_huge_pages({})}
    _, kept_bytes, huge_bytes = run("mapped", **variables)
    assert huge_bytes >= PAYLOAD_BYTES // 4
    assert kept_bytes < 4 * MIB


def test_the_heap_keeps_them_otherwise():
    _, kept_bytes, _ = run("as it is")
    assert kept_bytes > PAYLOAD_BYTES // 2


def test_they_stay_in_the_heap_where_mappings_would_get_small_pages():
    if thp.is_always():
        pytest.skip("this kernel gives huge pages unasked")
    with pytest.raises(AssertionError, match=r"^9 "):
        run("mapped")

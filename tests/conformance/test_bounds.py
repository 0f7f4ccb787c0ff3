"""Bounds of a process and its C allocator, against this machine's kernel, each in a child."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

from ullage.accounting.exact import settle
from ullage.devices import host
from ullage.units import GIB, MIB

SOURCE = Path(host.__file__).parents[2]
LIMIT = 4 * GIB

READ = """
import json, mmap
from ullage.accounting.exact import settle
from ullage.devices import host
def left(source):
    return next(c.available_bytes for c in settle(host.read()).candidates if c.source == source)
"""
HEAP = """
import ctypes, json, threading
from ullage.drivers import malloc
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def take():
    blocks = [libc.malloc(65536) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 65536)
    return blocks
def drop(blocks):  # the tenth that stays keeps the heap from shrinking
    for index, block in enumerate(blocks):
        if index % 10:
            libc.free(block)
def cached():
    heap = malloc.heap()
    return [heap.allocator, heap.cached_bytes]
"""


def run(code: str, limits: dict[int, int] | None = None, **environment: str) -> Any:
    def set_limits() -> None:
        for limit, size_bytes in (limits or {}).items():
            resource.setrlimit(limit, (size_bytes, size_bytes))

    answer = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=set_limits,
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_a_reservation_without_access_counts_against_the_limit_on_addresses():
    code = f"""{READ}
from ullage.drivers import libc
from ullage.errors import MemoryRefused
before = left("RLIMIT_AS")
libc.map_inaccessible({GIB})
after = left("RLIMIT_AS")
try:
    libc.map_inaccessible(after + {MIB})
    refused = False
except MemoryRefused:
    refused = True
print(json.dumps([before, after, refused]))
"""
    before, after, refused = run(code, {resource.RLIMIT_AS: LIMIT})
    assert before - after == pytest.approx(GIB, abs=8 * MIB)
    assert LIMIT - GIB < before < LIMIT
    assert refused


def test_only_writable_memory_counts_against_the_limit_on_data():
    code = f"""{READ}
from ullage.drivers import libc
before = left("RLIMIT_DATA")
address = libc.map_inaccessible({GIB})
reserved = left("RLIMIT_DATA")
libc.protect(address, {GIB}, libc.PROT_READ_WRITE)
print(json.dumps([before, reserved, left("RLIMIT_DATA")]))
"""
    before, reserved, committed = run(code, {resource.RLIMIT_DATA: LIMIT})
    assert reserved == pytest.approx(before, abs=8 * MIB)
    assert reserved - committed == pytest.approx(GIB, abs=8 * MIB)


def test_addresses_that_a_limit_forbids_are_refused_with_the_limit_s_name_and_a_way_out():
    code = f"""
import json
from ullage.errors import MemoryRefused
from ullage.vllm_plugin.observe import Observer
observer = Observer()
observer.check_addresses({GIB})
try:
    observer.check_addresses({LIMIT})
except MemoryRefused as error:
    print(json.dumps([str(error), observer.take().binding_source]))
"""
    message, binding = run(code, {resource.RLIMIT_AS: LIMIT})
    assert "needs 4.00 GiB of addresses, and RLIMIT_AS leaves 3." in message
    assert "`ulimit -v unlimited`" in message
    assert binding != "RLIMIT_AS"  # addresses are taken before memory


def test_a_process_without_limits_is_bound_by_memory_only():
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("addresses are limited here")
    assert all(each.source != "RLIMIT_AS" for each in host.read())


def test_a_quick_look_agrees_with_a_whole_reading_on_this_machine():
    quick = settle(host.read_at(host.places(), limits_only=True))
    whole = settle(host.read())
    assert quick.available_bytes == pytest.approx(whole.available_bytes, abs=64 * MIB)


def test_glibc_s_heap_caches_what_was_freed_until_it_is_released():
    code = f"""{HEAP}
blocks = take()
taken = cached()
drop(blocks)
freed = cached()
malloc.release_free_memory()
print(json.dumps([taken, freed, cached()]))
"""
    (allocator, taken), (_, freed), (_, released) = run(code)
    if allocator != "glibc":
        pytest.skip(f"the C allocator here is {allocator}")
    assert freed - taken == pytest.approx(900 * 65536, abs=4 * MIB)
    assert released < taken + 4 * MIB


def test_what_a_thread_s_arena_caches_is_seen():
    code = f"""{HEAP}
first = cached()
done, stop = threading.Event(), threading.Event()
def work():
    drop(take())
    done.set()
    stop.wait()
thread = threading.Thread(target=work)
thread.start()
done.wait()
print(json.dumps([first, cached()]))
stop.set()
thread.join()
"""
    (allocator, first), (_, freed) = run(code)
    if allocator != "glibc":
        pytest.skip(f"the C allocator here is {allocator}")
    assert freed - first == pytest.approx(900 * 65536, abs=6 * MIB)


def test_tcmalloc_s_cache_is_seen_where_it_is_preloaded():
    library = find_library("tcmalloc_minimal") or find_library("tcmalloc")
    if library is None:
        pytest.skip("no tcmalloc is installed (libtcmalloc-minimal4)")
    code = f"""{HEAP}
blocks = take()
taken = cached()
drop(blocks)
freed = cached()
malloc.release_free_memory()
print(json.dumps([taken, freed, cached()]))
"""
    (allocator, taken), (_, freed), (_, released) = run(code, LD_PRELOAD=library)
    assert allocator == "tcmalloc"
    assert freed - taken == pytest.approx(900 * 65536, abs=4 * MIB)
    assert released < freed - 32 * MIB

"""What the C allocator keeps, from mappings written by the test."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ullage.drivers import malloc
from ullage.units import GIB, KIB, MIB

ARENA = 0x7F00_0000_0000  # a multiple of 64 MiB
amounts = st.integers(0, 4 * GIB)


def smaps(root: Path, *mappings: tuple[int, int, str, int, str]) -> Path:
    """Start, stop, permissions, KiB present and anonymous, name."""
    file = root / "proc/self/smaps"
    file.parent.mkdir(parents=True)
    file.write_text(
        "".join(
            f"{start:x}-{stop:x} {permissions} 00000000 00:00 0    {name}\n"
            f"Rss: {present} kB\nReferenced: 0 kB\nAnonymous: {present} kB\n"
            for start, stop, permissions, present, name in mappings
        )
    )
    return root


def present_bytes(root: Path) -> int | None:
    heap = malloc.heap(root=root)
    return None if heap is None else heap.present_bytes


def test_the_heap_and_the_arenas_of_threads_are_counted_and_nothing_else(tmp_path):
    root = smaps(
        tmp_path,
        (0x5500_0000_0000, 0x5500_0100_0000, "rw-p", 100, "[heap]"),
        (ARENA, ARENA + MIB, "rw-p", 40, ""),
        (ARENA + MIB, ARENA + 64 * MIB, "---p", 0, ""),
        (ARENA + 64 * MIB, ARENA + 128 * MIB, "rw-p", 7, ""),  # a full one
        (ARENA + 192 * MIB, ARENA + 193 * MIB, "rw-p", 1000, ""),  # a block of its own
        (ARENA + 256 * MIB + KIB, ARENA + 257 * MIB, "rw-p", 1000, ""),
        (ARENA + 320 * MIB, ARENA + 321 * MIB, "rw-p", 1000, ""),  # part of a larger reservation
        (ARENA + 321 * MIB, ARENA + 1024 * MIB, "---p", 0, ""),
        (ARENA + 1024 * MIB, ARENA + 1088 * MIB, "rw-p", 1000, "/dev/zero"),
    )
    assert present_bytes(root) == (100 + 40 + 7) * KIB


def test_without_mappings_nothing_is_known_of_the_heap(tmp_path):
    assert present_bytes(tmp_path) is None


@given(in_use=amounts, free=amounts, present=amounts)
def test_cached_is_free_and_in_memory(in_use, free, present):
    heap = malloc.Heap(
        allocator="glibc", in_use_bytes=in_use, free_bytes=free, present_bytes=present
    )
    assert 0 <= heap.cached_bytes <= min(free, present)
    assert heap.cached_bytes + in_use <= max(present, in_use)
    if present >= in_use + free:
        assert heap.cached_bytes == free


def test_released_memory_is_free_and_not_cached():
    heap = malloc.Heap(
        allocator="glibc",
        in_use_bytes=15 * MIB,
        free_bytes=127 * MIB,
        present_bytes=17 * MIB,
    )
    assert heap.cached_bytes == 2 * MIB

"""The plugin's view of the host: what the first look fixes, and what addresses are no bound of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ullage.devices import host
from ullage.devices.base import MemoryParts, Reading
from ullage.errors import MemoryRefused
from ullage.units import GIB
from ullage.vllm_plugin.observe import Observer

ADDRESSES = Reading(source="RLIMIT_AS", scope="process", total_bytes=3 * GIB, used_bytes=2 * GIB)
Show = Callable[..., None]


def group(limit: int) -> Reading:
    return Reading(
        source="cgroup2:/",
        scope="group",
        total_bytes=limit,
        used_bytes=GIB,
        parts=MemoryParts(anon_bytes=GIB, shmem_bytes=0),
    )


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    def replace(*readings: Reading) -> None:
        def read_at(*_: object, **__: object) -> Sequence[Reading]:
            return readings

        monkeypatch.setattr(host, "read_at", read_at)

    return replace


def test_the_limit_that_was_seen_first_is_kept(show):
    observer = Observer()
    for limit in (8 * GIB, 4 * GIB, 16 * GIB):
        show(group(limit))
        assert observer.take().total_bytes == limit
        assert observer.limit_at_start_bytes == 8 * GIB


def test_what_is_left_of_the_addresses_bounds_no_memory(show):
    show(group(8 * GIB), ADDRESSES)
    observer = Observer()
    assert observer.take().available_bytes == observer.available_bytes() == 7 * GIB
    assert observer.mappable_bytes() == GIB


def test_more_addresses_than_are_left_are_refused_by_name_and_others_are_not(show):
    show(group(8 * GIB), ADDRESSES)
    Observer().check_addresses(GIB)
    with pytest.raises(MemoryRefused, match=r"4\.00 GiB of addresses, and RLIMIT_AS leaves 1\.00"):
        Observer().check_addresses(4 * GIB)


def test_without_a_limit_on_addresses_any_number_may_be_taken(show):
    show(group(8 * GIB))
    Observer().check_addresses(1 << 45)
    assert Observer().mappable_bytes() is None

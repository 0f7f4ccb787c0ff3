"""What engines promise one another: the same KV cache in every order, never more than there is."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.exact import WorkingSet, settle
from ullage.accounting.leases import (
    STEADY_BYTES,
    Lease,
    Process,
    Promise,
    asleep,
    foreign_bytes,
    is_dead,
    left_share,
    needed_by_source,
    parse_share,
    promised_bytes,
    refuse_awake,
    refuse_if_promised,
)
from ullage.accounting.snapshot import snapshot
from ullage.budget import Engine, budget
from ullage.devices.base import MemoryParts, ProcessReading, Reading
from ullage.errors import DoesNotFit, OverAvailable
from ullage.units import GIB, MIB

SOURCE, GROUP = "cgroup2:/", "cgroup2:30:77"
ME = Process(boot_id="b", pid_namespace="pid:[1]", pid=10, start_time_ticks=500)


def lease(pid: int = 20, share: str | None = "1/2", promised: int = 0, taken: int = 0) -> Lease:
    return Lease(
        worker=replace(ME, pid=pid),
        frontend_pid=pid,
        limit=GROUP,
        limits=("host", GROUP),
        limit_bytes=8 * GIB,
        share=share,
        promised_bytes=promised,
        taken_bytes=taken,
    )


def group(limit: int, anon: int, files: int = 0, kernel: int = 0) -> Reading:
    parts = MemoryParts(
        anon_bytes=anon,
        shmem_bytes=0,
        inactive_file_bytes=files,
        active_file_bytes=0,
        mapped_file_bytes=files,
        dirty_bytes=0,
        writeback_bytes=0,
        kernel_bytes=kernel,
    )
    used = anon + files + kernel
    return Reading(source=SOURCE, scope="group", total_bytes=limit, used_bytes=used, parts=parts)


@st.composite
def engines(draw: st.DrawFn) -> tuple[int, int, list[tuple[Fraction, Engine, int, int]]]:
    """A limit, kernel memory, and two or three engines: share, needs, files and margin, all of
    which fit into the share."""
    limit = draw(st.integers(1 * GIB, 64 * GIB))
    parts = draw(st.lists(st.integers(1, 9), min_size=2, max_size=3))
    shares = [Fraction(part, sum(parts) + draw(st.integers(0, 3))) for part in parts]
    found = []
    for share in shares:
        left = promised_bytes(limit, share)
        sizes = []
        for _ in range(5):
            sizes.append(draw(st.integers(0, max(0, left))))
            left -= sizes[-1]
        used, transient, later, files, margin = sizes
        engine = Engine(used_bytes=used, kv_bytes=0, transient_bytes=transient, later_bytes=later)
        found.append((share, engine, files, margin))
    kernel = draw(st.integers(0, limit - promised_bytes(limit, Fraction(1))))
    return limit, kernel, found


@given(engines(), st.data())
def test_each_engine_gets_the_same_in_every_order_and_together_they_stay_below_the_limit(
    drawn, data
):
    limit, kernel, found = drawn
    numbers = range(len(found))
    results: list[dict[int, int]] = []
    for order in permutations(numbers):
        kv: dict[int, int] = {}
        for number in order:
            # Those that decided have any part of their peak just now; the others are anywhere
            # between nothing and all that they load, with or without a lease yet.
            leases, anon, files = [], 0, 0
            for other in numbers:
                share, engine, own_files, _ = found[other]
                taken = engine.used_bytes
                if other in kv:
                    peak = engine.transient_bytes + engine.later_bytes
                    taken += kv[other] + data.draw(st.integers(0, peak))
                elif other != number:
                    taken = data.draw(st.integers(0, taken))
                anon, files = anon + taken, files + own_files
                if other != number:
                    promised = promised_bytes(limit, share)
                    leases.append(lease(other, str(share), promised, taken))
            share, engine, own_files, margin = found[number]
            settled = settle(
                [group(limit, anon, files, kernel)],
                working_set=WorkingSet(mapped_bytes=files, referenced_bytes=own_files),
                promised=needed_by_source(leases, {SOURCE: GROUP}),
            )
            promise = Promise(
                size_bytes=promised_bytes(limit, share), file_bytes=own_files, earlier_kv_bytes=None
            )
            kv[number] = budget(
                total_bytes=limit,
                available_bytes=settled.available_bytes,
                engine=engine,
                margin_bytes=margin,
                utilization=None,
                promise=promise,
            ).kv_bytes
        results.append(kv)
        assert (
            kernel
            + sum(
                kv[n] + e.used_bytes + e.transient_bytes + e.later_bytes + f + m
                for n, (_, e, f, m) in enumerate(found)
            )
            <= limit
        )
    assert all(result == results[0] for result in results)


@given(st.integers(1, 64 * GIB), st.lists(st.integers(-STEADY_BYTES // 2, STEADY_BYTES // 2)))
def test_equal_starts_that_differ_by_less_than_a_room_get_the_same(size, noise):
    earlier = None
    given_bytes = set()
    for more in [0, *noise]:
        promise = Promise(
            size_bytes=size + 2 * STEADY_BYTES, file_bytes=0, earlier_kv_bytes=earlier
        )
        earlier = promise.kv_bytes(STEADY_BYTES // 2 + more)
        given_bytes.add(earlier)
    assert len(given_bytes) == 1


@given(st.integers(0, GIB), st.integers(0, GIB), st.none() | st.integers(1, GIB))
def test_what_an_earlier_start_got_is_given_only_where_it_fits_now(size, other, earlier):
    promise = Promise(size_bytes=size, file_bytes=0, earlier_kv_bytes=earlier)
    assert promise.kv_bytes(other) <= size - other


def test_an_earlier_size_that_leaves_much_unused_is_forgotten():
    promise = Promise(size_bytes=GIB, file_bytes=0, earlier_kv_bytes=GIB // 2)
    assert promise.kv_bytes(0) == GIB - STEADY_BYTES


@pytest.mark.parametrize(
    ("text", "share"),
    [("1/3", Fraction(1, 3)), ("0.33", Fraction(33, 100)), ("33%", Fraction(33, 100)), ("1", 1)],
)
def test_a_share_is_a_fraction_a_decimal_or_a_percentage(text, share):
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "0", "4/3", "half", "1/0", "-1/2", "120%", "nan", "1/3%"])
def test_what_is_no_share_is_refused_with_what_would_be_one(text):
    with pytest.raises(ValueError, match=r"Write it like 1/3, 0\.33 or 33%"):
        parse_share(text)


def test_shares_that_exceed_one_are_refused_with_what_is_left():
    others = [lease(21, "1/2"), lease(22, "1/3")]
    refuse_if_promised(Fraction(1, 6), GROUP, others)
    refuse_if_promised(Fraction(1), "cgroup2:30:99", others)
    with pytest.raises(DoesNotFit, match=r"1/2 \(process 21\), 1/3 \(process 22\).*=1/6 or less"):
        refuse_if_promised(Fraction(1, 5), GROUP, others)
    refuse_if_promised(None, GROUP, others)
    with pytest.raises(DoesNotFit, match=r"this one has no share\. End one of them\.$"):
        refuse_if_promised(None, GROUP, [*others, lease(23, "1/6")])


@pytest.mark.parametrize("share", [None, Fraction(1, 9)])
def test_beside_an_engine_that_took_all_the_refusal_names_it_and_the_option(share):
    with pytest.raises(DoesNotFit, match=r"process 24 .*ULLAGE_SHARE=1/2"):
        refuse_if_promised(share, GROUP, [lease(24, None)])


def test_another_s_needs_come_off_each_source_that_both_share():
    here, elsewhere = lease(promised=5, taken=2), replace(lease(promised=7), limits=("host",))
    needed = needed_by_source([here, elsewhere], {"meminfo": "host", SOURCE: GROUP})
    assert needed == {"meminfo": 10, SOURCE: 3}
    assert lease(promised=1, taken=2).needed_bytes == 0


def test_promises_are_a_line_of_the_ledger_and_not_available():
    readings = [group(8 * GIB, GIB)]
    alone = snapshot(readings=readings, processes=[], taken_at_s=0.0)
    beside = snapshot(readings=readings, processes=[], taken_at_s=0.0, promised={SOURCE: GIB})
    assert beside.available_bytes == alone.available_bytes - GIB
    assert beside.ledger.residual_bytes == alone.ledger.residual_bytes
    names = [line.name for line in beside.ledger.lines]
    assert "promised to other engines, and not taken yet" in names


def test_a_lease_is_dead_after_a_boot_without_its_process_and_with_another_of_its_pid():
    held = lease(20)
    assert is_dead(held, ME, 500) is False
    assert is_dead(held, ME, None) is True
    assert is_dead(held, ME, 501) is True
    assert is_dead(held, replace(ME, boot_id="c"), 500) is True
    assert is_dead(held, replace(ME, pid_namespace="pid:[2]"), None) is None


def test_what_is_neither_ours_nor_another_engine_s_is_foreign():
    own = ProcessReading(
        pid=1,
        ppid=0,
        name="own",
        start_time_ticks=1,
        anon_bytes=300 * MIB,
        shmem_bytes=0,
        file_bytes=0,
        source="smaps_rollup",
    )
    taken = snapshot(readings=[group(8 * GIB, GIB)], processes=[own], taken_at_s=0.0)
    others = [lease(taken=500 * MIB), replace(lease(taken=GIB), limits=("host",))]
    assert foreign_bytes(taken, SOURCE, GROUP, others) == 224 * MIB
    unknown = replace(taken, processes=(replace(own, anon_bytes=None),))
    assert foreign_bytes(unknown, SOURCE, GROUP, others) is None


def test_what_others_hold_is_unknown_where_the_limit_is_none_of_the_sources():
    taken = snapshot(readings=[group(8 * GIB, GIB)], processes=[], taken_at_s=0.0)
    assert foreign_bytes(taken, "cgroup2:/gone", GROUP, []) is None


@given(st.integers(0, 8 * GIB), st.sampled_from(["1/2", None]))
def test_a_sleeping_engine_s_share_is_at_least_what_it_holds_and_leaves_the_rest(taken, share):
    awake = lease(20, share, promised=promised_bytes(8 * GIB, Fraction(1)))
    sleeping = asleep(awake, taken)
    divided = promised_bytes(8 * GIB, Fraction(1))
    assert sleeping.needed_bytes == 0
    assert min(taken, divided) <= Fraction(sleeping.share or 0) * divided
    assert left_share(GROUP, [sleeping]) >= Fraction(divided - taken, divided) - Fraction(1, 1000)


def test_an_engine_wakes_beside_whom_it_fell_asleep_and_not_beside_who_took_its_share_since():
    old, new, other_limit = lease(21, None), lease(22, "2/3"), lease(23, None)
    half = Fraction(1, 2)
    refuse_awake(half, GROUP, before=[old], now=[old])
    refuse_awake(half, GROUP, before=[], now=[replace(new, share="1/2")])
    refuse_awake(half, GROUP, before=[], now=[replace(other_limit, limit="cgroup2:30:99")])
    for now in ([new], [old], [new, lease(24, "1/9")]):
        with pytest.raises(OverAvailable, match=r"needs 1/2 to wake\. It stays asleep"):
            refuse_awake(half, GROUP, before=[], now=now)
    with pytest.raises(OverAvailable, match="all"):
        refuse_awake(half, GROUP, before=[replace(old, share="1/9")], now=[old])

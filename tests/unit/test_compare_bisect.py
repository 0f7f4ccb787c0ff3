"""The search for stock's best setting."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from ullage.compare.bisect import STEP_BYTES, STEP_SHARE, Probe, bounds, next_value
from ullage.units import GIB, MIB

MOST_PROBES = 12


def best(probes: list[Probe]) -> int | None:
    return max((probe.value_bytes for probe in probes if probe.verdict == "works"), default=None)


def search(try_value: Callable[[int], Probe], upper_bytes: int) -> list[Probe]:
    probes: list[Probe] = []
    while (value := next_value(probes, upper_bytes)) is not None:
        probes.append(try_value(value))
        assert len(probes) <= MOST_PROBES, "the search does not end"
    return probes


def limited(most_bytes: int) -> Callable[[int], Probe]:
    """A machine on which everything up to `most_bytes` works."""
    return lambda value: Probe(
        value_bytes=value, verdict="works" if value <= most_bytes else "too_much"
    )


@given(st.integers(0, 64 * 1024), st.integers(1024, 64 * 1024))
def test_the_best_value_is_found_to_64_mib_or_3_percent(most_mib: int, upper_mib: int) -> None:
    most, upper = min(most_mib, upper_mib) * MIB, upper_mib * MIB
    found = best(search(limited(most), upper)) or 0
    assert found <= most
    assert most - found <= max(STEP_BYTES, int(found * STEP_SHARE)) + MIB


@given(st.integers(0, 8192), st.integers(0, 16 * GIB))
def test_a_wrong_hint_costs_probes_but_not_the_result(most_mib: int, hint: int) -> None:
    most, upper = most_mib * MIB, 8 * GIB

    def misled(value: int) -> Probe:
        verdict = "works" if value <= most else "too_much"
        return Probe(value_bytes=value, verdict=verdict, hint_bytes=hint)

    probes: list[Probe] = []
    while len(probes) < 200 and (value := next_value(probes, upper)) is not None:
        probes.append(misled(value))
    found = best(probes) or 0
    assert most - found <= max(STEP_BYTES, int(found * STEP_SHARE)) + MIB


def test_a_hint_between_the_bounds_is_tried_next() -> None:
    refused = Probe(value_bytes=2 * GIB, verdict="too_much", hint_bytes=300 * MIB + 5)
    assert next_value([refused], 4 * GIB) == 300 * MIB


def test_a_value_that_is_too_little_is_a_lower_bound_and_no_result() -> None:
    probes = [
        Probe(value_bytes=GIB, verdict="too_little"),
        Probe(value_bytes=2 * GIB, verdict="too_much"),
    ]
    assert bounds(probes, 4 * GIB) == (GIB, 2 * GIB)
    assert best(probes) is None
    assert next_value(probes, 4 * GIB) == 1536 * MIB


def test_the_search_ends_where_nothing_works() -> None:
    probes = search(limited(0), 4 * GIB)
    assert best(probes) is None
    assert min(probe.value_bytes for probe in probes) <= STEP_BYTES

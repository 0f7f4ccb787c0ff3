"""What the KV cache may take: two bounds, and each deduction by name."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from ullage.budget import Budget, Engine, budget, default_margin_bytes
from ullage.units import GIB, MIB

amounts = st.integers(0, 1 << 40)
fractions = st.floats(0.01, 1.0)
engines = st.builds(
    Engine, used_bytes=amounts, kv_bytes=amounts, transient_bytes=amounts, later_bytes=amounts
)


def of(
    available: int,
    *,
    total: int = 100 * GIB,
    used: int = 0,
    kv: int = 0,
    transient: int = 0,
    later: int = 0,
    margin: int = 0,
    utilization: float | None = None,
) -> Budget:
    return budget(
        total_bytes=total,
        available_bytes=available,
        engine=Engine(used_bytes=used, kv_bytes=kv, transient_bytes=transient, later_bytes=later),
        margin_bytes=margin,
        utilization=utilization,
    )


def test_transient_peak_and_margin_come_off_what_is_available_by_name():
    result = of(10 * GIB, transient=2 * GIB, later=GIB // 2, margin=GIB)
    assert (result.kv_bytes, result.bound) == (13 * GIB // 2, "available")
    assert [(line.name, line.size_bytes) for line in result.deductions] == [
        ("transient peak of the largest step", 2 * GIB),
        ("still to come in the engine's processes", GIB // 2),
        ("margin", GIB),
    ]


def test_what_the_cache_has_already_can_be_had_again():
    assert of(10 * GIB, kv=3 * GIB).kv_bytes == 13 * GIB


def test_a_fraction_bounds_all_that_the_engine_takes():
    result = of(90 * GIB, used=20 * GIB, transient=5 * GIB, margin=GIB, utilization=0.5)
    assert (result.kv_bytes, result.bound) == (25 * GIB, "utilization")


def test_no_margin_is_taken_off_an_explicit_fraction_that_leaves_as_much_free():
    without = of(90 * GIB, used=20 * GIB, utilization=0.5)
    assert of(90 * GIB, used=20 * GIB, margin=GIB, utilization=0.5).kv_bytes == without.kv_bytes


def test_a_fraction_above_what_is_available_does_not_bind():
    result = of(10 * GIB, used=20 * GIB, margin=GIB, utilization=0.9)
    assert (result.kv_bytes, result.bound) == (9 * GIB, "available")


def test_the_default_margin_is_a_64th_and_at_least_64_mib():
    assert default_margin_bytes(2 * GIB) == 64 * MIB
    assert default_margin_bytes(64 * GIB) == GIB
    assert default_margin_bytes(64 * GIB + 1) == GIB + 1


@given(amounts, amounts, engines, amounts, st.none() | fractions)
def test_the_smaller_bound_binds_and_is_never_negative(total, available, engine, margin, fraction):
    result = budget(
        total_bytes=total,
        available_bytes=available,
        engine=engine,
        margin_bytes=margin,
        utilization=fraction,
    )
    kept = engine.transient_bytes + engine.later_bytes
    bounds = {"available": available + engine.kv_bytes - kept - margin}
    if fraction is not None:
        # Exactly the fraction that the float stands for: no rounding before the last step.
        allowed = ceil(total * Fraction(fraction))
        bounds["utilization"] = allowed - engine.used_bytes - kept
    assert result.kv_bytes == max(0, min(bounds.values()))
    assert bounds[result.bound] == min(bounds.values())


@given(amounts, engines, amounts)
def test_more_available_never_gives_less(available, engine, margin):
    def kv_bytes(available_bytes: int) -> int:
        return budget(
            total_bytes=1 << 40,
            available_bytes=available_bytes,
            engine=engine,
            margin_bytes=margin,
            utilization=None,
        ).kv_bytes

    assert kv_bytes(available) <= kv_bytes(available + 1)

"""Bytes to text and back, and alignment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.units import (
    GIB,
    KIB,
    MIB,
    align_down,
    align_up,
    ceil_div,
    gib,
    gib_at_least,
    parse_size,
)

SIZES = st.integers(min_value=0, max_value=1 << 50)
ALIGNMENTS = st.integers(min_value=1, max_value=1 << 30)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4GiB", 4 * GIB),
        ("1.5 GiB", 3 * GIB // 2),
        (" 512MiB ", 512 * MIB),
        ("64KiB", 64 * KIB),
        ("1GB", 10**9),
        ("7B", 7),
        ("0GiB", 0),
    ],
)
def test_a_size_with_a_unit_is_that_many_bytes(text: str, size_bytes: int):
    assert parse_size(text) == size_bytes


def test_a_bare_number_is_refused_with_what_would_work():
    with pytest.raises(ValueError, match=r"'4' is not a size with a unit\. Write it like 4GiB"):
        parse_size("4")


@pytest.mark.parametrize("text", ["", "GiB", "4G", "4 gib", "-1GiB", "1e3GiB", "4GiB 2", "0x10B"])
def test_anything_else_is_refused_and_named(text: str):
    with pytest.raises(ValueError, match=r"Use|Write"):
        parse_size(text)


@given(size_bytes=SIZES)
def test_a_number_of_bytes_survives_the_way_through_text(size_bytes: int):
    assert parse_size(f"{size_bytes}B") == size_bytes


@given(size_bytes=SIZES, alignment_bytes=ALIGNMENTS)
def test_aligning_brackets_a_size_by_less_than_one_alignment(size_bytes: int, alignment_bytes: int):
    below, above = align_down(size_bytes, alignment_bytes), align_up(size_bytes, alignment_bytes)
    assert below <= size_bytes <= above
    assert below % alignment_bytes == above % alignment_bytes == 0
    assert above - below == (0 if size_bytes % alignment_bytes == 0 else alignment_bytes)


@given(dividend=SIZES, divisor=ALIGNMENTS)
def test_ceil_div_is_the_fewest_pieces_that_hold_it_all(dividend: int, divisor: int):
    pieces = ceil_div(dividend, divisor)
    assert pieces * divisor >= dividend
    assert dividend == 0 or (pieces - 1) * divisor < dividend


def test_text_is_in_gib_whatever_the_size():
    assert [gib(0), gib(3 * GIB // 2), gib(MIB, digits=4)] == ["0.00 GiB", "1.50 GiB", "0.0010 GiB"]


@given(SIZES)
def test_advice_is_enough_and_by_less_than_a_hundredth_more(size_bytes: int):
    said_bytes = parse_size(gib_at_least(size_bytes))
    assert size_bytes - 1 <= said_bytes < size_bytes + ceil_div(GIB, 100)

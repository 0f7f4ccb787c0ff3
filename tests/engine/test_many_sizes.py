"""Steps of many sizes: their kernels are bounded, and there is room for them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from engines import run

from ullage.units import GIB

pytestmark = [pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="needs vLLM")

OURS = {"ULLAGE": "1", "ULLAGE_STRICT": "1"}
KEPT = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def measured(**switches: str) -> dict[str, Any]:
    answer: dict[str, Any] = run("many_sizes.py", **switches)
    return answer


def room_bytes(answer: dict[str, Any]) -> int:
    (size_gib,) = re.findall(r"([\d.]+) GiB\s+still to come in the engine", answer["log"])
    return int(float(size_gib) * GIB)


def test_steps_of_four_hundred_sizes_take_no_more_than_the_room_that_is_kept_for_them():
    ours = measured(**OURS)
    assert ours["grown_bytes"] < room_bytes(ours)


def test_where_the_user_lets_onednn_keep_more_the_engine_takes_more_and_has_more_room():
    ours, larger = measured(**OURS), measured(**OURS, **{KEPT: "1024"})
    assert room_bytes(ours) < larger["grown_bytes"] < room_bytes(larger)

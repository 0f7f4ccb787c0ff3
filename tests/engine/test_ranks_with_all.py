"""Two ranks with a share, a KV connector and sleep at once: each holds for all ranks together."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from typing import Any

import pytest
from engines import each_rank_a_core, limit_bytes, run

from ullage.accounting.leases import promised_bytes
from ullage.units import GIB, MIB

pytestmark = [pytest.mark.timeout(900)]
pytest.importorskip("vllm", reason="needs vLLM")
if len(os.sched_getaffinity(0)) < 2:
    pytest.skip("two ranks need two cores", allow_module_level=True)

SHARE = "1/6"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    switches = {"ULLAGE": "1", "ULLAGE_STRICT": "1", "ULLAGE_SHARE": SHARE}
    answer: dict[str, Any] = run(
        "two_ranks.py", "--no-memory-flag", "--sleep", **switches, **each_rank_a_core()
    )
    return answer


def committed_bytes(told: dict[str, Any]) -> float:
    """Of both ranks."""
    found = re.findall(rf"ullage committed {told['blocks']} blocks, ([\d.]+) GiB", told["log"])
    assert len(found) == 2
    return sum(map(float, found)) * GIB


def test_both_ranks_together_keep_to_the_share_of_one_engine(told):
    promise = promised_bytes(limit_bytes(), Fraction(SHARE))
    assert 0.7 * promise < told["awake_bytes"] <= promise


def test_each_rank_s_connector_is_made_over_what_was_committed_and_answers_as_stock_s(told):
    stock = run("two_ranks.py", **each_rank_a_core())
    assert told["outputs"] == stock["outputs"]
    made = r"\((Worker_TP\d) pid=\d+\).*Creating v1 connector"
    assert sorted(re.findall(made, told["log"])) == ["Worker_TP0", "Worker_TP1"]
    assert told["log"].rindex("ullage commits") < re.search(made, told["log"]).start()


def test_asleep_both_ranks_give_their_memory_back_and_awake_they_answer_as_before(told):
    released = told["awake_bytes"] - told["asleep_bytes"]
    # The log rounds to a hundredth of a GiB, for each rank.
    assert released == pytest.approx(committed_bytes(told), abs=32 * MIB)
    assert told["woken_bytes"] == pytest.approx(told["awake_bytes"], abs=64 * MIB)
    assert told["woken_outputs"] == told["outputs"]

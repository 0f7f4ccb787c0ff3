"""When ullage's worker stands in for stock's, when not, and what it says then."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from engines import OUR_WORKER, STOCK_WORKER, run

from ullage.report.json import json_schema
from ullage.report.receipt import Receipt

pytestmark = [pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="needs vLLM")

REASONS = {
    "explicit size": "--kv-cache-memory-bytes",
    "explicit blocks": "--num-gpu-blocks-override",
    "pooling": "pooling",
    "two engines": "--data-parallel-size",
    "speculation": "--speculative-config",
    "connector": "the KV connector SimpleCPUOffloadConnector",
    "offloading": "--kv-offloading-size",
    "adapters": "--enable-lora",
}


@pytest.mark.parametrize(
    "case", ["plain", "utilization", "connector to files", "two ranks", "two stages"]
)
def test_it_stands_in_and_says_nothing(case: str):
    answer = run("choose.py", ULLAGE="1")[case]
    assert (answer["worker"], answer["warnings"], answer["error"]) == (OUR_WORKER, [], None)


@pytest.mark.parametrize("case", REASONS)
def test_it_leaves_to_stock_what_it_cannot_handle_in_one_line_with_the_reason(case: str):
    answer = run("choose.py", ULLAGE="1")[case]
    assert (answer["worker"], answer["error"]) == (STOCK_WORKER, None)
    (warning,) = answer["warnings"]
    assert warning.startswith("ullage leaves this start to stock vLLM: ")
    assert REASONS[case] in warning


def test_a_worker_class_that_somebody_named_stays():
    answer = run("choose.py", ULLAGE="1")["other worker"]
    assert answer["worker"] == "vllm.v1.worker.gpu_worker.Worker"
    assert "--worker-cls" in answer["warnings"][0]


@pytest.mark.parametrize(("switch", "kind"), [({}, "stock"), ({"ULLAGE_STRICT": "1"}, "refused")])
def test_a_start_that_is_left_to_stock_or_refused_has_one_receipt_with_the_reason(
    tmp_path: Path, switch: dict[str, str], kind: str
):
    run("choose.py", "pooling", ULLAGE="1", ULLAGE_RECEIPTS=str(tmp_path), **switch)
    (receipt,) = (json.loads(path.read_text()) for path in tmp_path.iterdir())
    jsonschema.validate(receipt, json_schema(Receipt))
    assert receipt["outcome"]["kind"] == kind
    assert "pooling" in receipt["outcome"]["reason"]
    assert receipt["flags"]["max_model_len"] == 512


@pytest.mark.parametrize("case", REASONS)
def test_strict_raises_instead_with_the_reason_and_the_way_out(case: str):
    answer = run("choose.py", ULLAGE="1", ULLAGE_STRICT="1")[case]
    assert answer["worker"] is None
    assert REASONS[case] in answer["error"]
    assert "Unset ULLAGE_STRICT" in answer["error"]


@pytest.mark.parametrize("switch", [{}, {"ULLAGE": "0"}])
def test_switched_off_every_case_is_stock_s_and_nothing_is_said(switch: dict[str, str]):
    answers = run("choose.py", **switch)
    del answers["log"]
    assert {name: answer["worker"] for name, answer in answers.items()} == {
        name: "vllm.v1.worker.gpu_worker.Worker" if name == "other worker" else STOCK_WORKER
        for name in answers
    }
    assert not any(answer["warnings"] for answer in answers.values())


def test_an_unknown_variable_is_warned_about_by_name():
    log = run("choose.py", "plain", ULLAGE="1", ULLAGE_MARGINS="1GiB")["log"]
    assert "ullage does not know ULLAGE_MARGINS" in log

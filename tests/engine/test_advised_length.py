"""A context that does not fit beside what was measured: the engine's own refusal, the length that
it advises, and a start with that length, with its receipt and its explanation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engines import HERE, environment, tiny_model

from ullage.compare.container import container
from ullage.compare.counters import Sampler
from ullage.errors import NotEnforced
from ullage.report.json import json_schema
from ullage.report.receipt import Receipt
from ullage.units import GIB

pytestmark = [pytest.mark.timeout(900)]
pytest.importorskip("vllm", reason="needs vLLM")

LIMIT_BYTES = 2 * GIB
SHARE = "0.8"  # of the limit: what is refused by it would still fit into the limit
LONG = 229_376  # tokens: 0.44 GiB of KV cache in float32


def long_model(directory: Path) -> Path:
    """The tiny model, with room for long contexts."""
    directory.mkdir()
    for path in tiny_model().iterdir():
        (directory / path.name).symlink_to(path)
    config = json.loads((tiny_model() / "config.json").read_text())
    (directory / "config.json").unlink()
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": LONG}))
    return directory


def start(scratch: Path, model: Path, length: int) -> dict[str, Any]:
    """Exit code, log, OOM kills, result and receipts of one engine in a fresh group."""
    scratch.mkdir()
    result = scratch / "result.json"
    program = [sys.executable, str(HERE / "generate.py"), str(model), str(result)]
    flags = ["--utilization", SHARE, "--max-model-len", str(length)]
    switches = {"ULLAGE": "1", "ULLAGE_STRICT": "1", "ULLAGE_EXPLAIN": "1"}
    with container(LIMIT_BYTES) as inside, Sampler(inside.group) as sampler:
        process = subprocess.run(
            inside.command([*program, *flags]),
            env=environment(
                **switches,
                TMPDIR=str(scratch),
                XDG_RUNTIME_DIR=str(scratch),
                ULLAGE_RECEIPTS=str(scratch / "receipts"),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        oom_kills = sampler.counters().oom_kills
    return {
        "code": process.returncode,
        "log": process.stdout,
        "oom_kills": oom_kills,
        "result": json.loads(result.read_text()) if result.exists() else None,
        "receipts": [
            json.loads(path.read_text()) for path in sorted((scratch / "receipts").iterdir())
        ],
    }


@cache
def both(top: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The refused start, the one with the length that was advised, and that length."""
    model = long_model(top / "model")
    refused = start(top / "refused", model, LONG)
    advised = re.search(r"estimated maximum model length is (\d+)\. ", refused["log"])
    assert advised is not None, refused["log"][-6000:]
    return refused, start(top / "advised", model, int(advised[1])), int(advised[1])


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    try:
        return both(tmp_path_factory.mktemp("advised"))
    except NotEnforced as error:
        pytest.skip(str(error))


def test_the_engine_refuses_with_its_own_error_and_a_length(starts: Any):
    refused, _, length = starts
    assert (refused["code"], refused["oom_kills"]) == (1, 0)
    assert (
        f"ValueError: To serve at least one request with the model's max seq len ({LONG})"
        in (refused["log"])
    )
    assert 0 < length < LONG


def test_the_length_that_it_advises_starts_and_serves(starts: Any):
    _, advised, length = starts
    assert (advised["code"], advised["oom_kills"]) == (0, 0), advised["log"][-6000:]
    assert advised["result"]["blocks"] * 128 >= length


def test_both_have_a_receipt_that_follows_its_schema(starts: Any):
    refused, advised, length = starts
    (sized,) = refused["receipts"]
    (started,) = advised["receipts"]
    for receipt in (sized, started):
        jsonschema.validate(receipt, json_schema(Receipt))
        lines = sum(line["size_bytes"] or 0 for line in receipt["ledger"]["lines"])
        assert lines + receipt["ledger"]["residual_bytes"] == receipt["ledger"]["total_bytes"]
        assert receipt["baseline"]["available_bytes"] > receipt["final"]["available_bytes"]
    assert sized["outcome"]["kind"] == "sized"
    assert started["outcome"]["kind"] == "started"
    assert started["flags"]["max_model_len"] == length
    assert started["cache"]["blocks"] == advised["result"]["blocks"]
    assert started["budget"]["bound"] == "utilization"
    assert {step["name"] for step in started["steps"]} == {"largest prefill", "longest decode"}


def test_the_receipt_names_every_part_of_the_start_s_time(starts: Any):
    _, advised, _ = starts
    (receipt,) = advised["receipts"]
    assert [phase["name"] for phase in receipt["phases"]] == [
        "device and ranks",
        "load",
        "engine core asks for the layers",
        "reserve",
        "wait for other engines",
        "compile",
        "bind at capacity",
        "warm-up: small steps",
        "warm-up: foresight of the largest step",
        "warm-up: largest prefill",
        "warm-up: longest decode",
        "compiled files written",
        "usual work",
        "decision",
        "engine core plans the blocks",
        "commit",
        "bind",
    ]


def test_the_explanation_is_printed_once_and_only_where_a_cache_was_committed(starts: Any):
    refused, advised, _ = starts
    assert "outcome     started" not in refused["log"]
    assert advised["log"].count("outcome     started") == 1
    (receipt,) = advised["receipts"]
    assert f"receipt     {receipt['name']}, " in advised["log"]

"""KV connectors over a cache that got its memory after the warm-up, against stock with the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engines import OUR_WORKER, STOCK_WORKER, run

pytestmark = [pytest.mark.timeout(900)]
pytest.importorskip("vllm", reason="needs vLLM")

OURS = {"ULLAGE": "1", "ULLAGE_STRICT": "1"}
LAYERS = 2
LOADED_TOKENS = 640  # the whole blocks of a prompt of 700


def connect(name: str, extra: dict[str, Any], **switches: str) -> dict[str, Any]:
    # In one process, so that the program sees what the worker's connector sees.
    switches["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    answer: dict[str, Any] = run("connect.py", name, json.dumps(extra), **switches)
    return answer


def assert_made_once_over_exactly_what_is_committed(answer: dict[str, Any]) -> None:
    assert answer["worker"] == OUR_WORKER
    assert answer["made"] == 1
    (registered,) = answer["storages"]
    assert len(registered) == LAYERS
    for view in registered:
        assert view["blocks"] == answer["blocks"]
        assert view["bytes"] == view["blocks"] * view["block_bytes"]
        assert view["starts_at_storage"]
    committed = answer["log"].index(f"ullage commits {answer['blocks']} blocks")
    assert committed < answer["log"].index("Creating v1 connector with name")


def files(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*.safetensors")
    }


def test_what_one_engine_stores_in_files_another_loads_and_answers_as_stock_does(tmp_path: Path):
    ours, stock = tmp_path / "ours", tmp_path / "stock"
    stores_stock = connect("ExampleConnector", {"shared_storage_path": str(stock)})
    stores = connect("ExampleConnector", {"shared_storage_path": str(ours)}, **OURS)
    assert_made_once_over_exactly_what_is_committed(stores)
    assert stores_stock["worker"] == STOCK_WORKER
    assert stores["outputs"] == stores_stock["outputs"]
    stored = files(ours)
    assert len(stored) == LAYERS
    assert set(stored) == set(files(stock))
    # All bytes that a layer's blocks hold, as stock stores them.
    assert {name: (ours / name).read_bytes() for name in stored} == {
        name: (stock / name).read_bytes() for name in stored
    }

    loads = connect("ExampleConnector", {"shared_storage_path": str(ours), "again": 1}, **OURS)
    assert_made_once_over_exactly_what_is_committed(loads)
    assert f"Inject KV cache of {LOADED_TOKENS} tokens" in loads["log"]
    assert f"Inject KV cache of {LOADED_TOKENS} tokens" not in stores["log"]
    assert files(ours) == stored, "read, not written anew"
    loads_stock = connect("ExampleConnector", {"shared_storage_path": str(stock), "again": 1})
    assert loads["outputs"] == loads_stock["outputs"] == stores["outputs"]


def test_a_connector_that_fills_every_block_at_the_start_fills_what_is_committed():
    extra = {"startup_fill": True, "fill_mean": 0.015}
    ours = connect("DecodeBenchConnector", extra, **OURS)
    assert_made_once_over_exactly_what_is_committed(ours)
    assert f"Filled {LAYERS} KV cache layers at startup" in ours["log"]
    stock = connect("DecodeBenchConnector", extra)
    assert ours["outputs"] == stock["outputs"]

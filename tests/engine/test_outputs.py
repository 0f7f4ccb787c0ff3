"""The engine with ullage says, token for token, what stock vLLM says."""

from __future__ import annotations

import pytest
from engines import OUR_WORKER, STOCK_WORKER, run

pytestmark = [pytest.mark.timeout(900)]
pytest.importorskip("vllm", reason="needs vLLM")

PROGRAM = "generate.py"


@pytest.mark.parametrize("prefix_caching", ["without-prefix-caching", "with-prefix-caching"])
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_outputs_equal_stock_s_token_for_token(mode: str, prefix_caching: str):
    arguments = ["--compiled"] if mode == "compiled" else []
    arguments += ["--prefix-caching"] if prefix_caching == "with-prefix-caching" else []
    stock = run(PROGRAM, *arguments)
    ours = run(PROGRAM, *arguments, ULLAGE="1", ULLAGE_STRICT="1")
    assert (stock["worker"], ours["worker"]) == (STOCK_WORKER, OUR_WORKER)
    assert ours["outputs"] == stock["outputs"]
    assert ours["cached_tokens"] == stock["cached_tokens"]
    assert (ours["cached_tokens"] > 0) == (prefix_caching == "with-prefix-caching")
    assert len({tuple(output) for output in stock["outputs"]}) > 1, "all prompts answer alike"


def test_installed_and_not_switched_on_it_leaves_stock_s_worker_and_log():
    stock = run(PROGRAM)
    assert stock["worker"] == STOCK_WORKER
    assert "ullage:" not in stock["log"]
    assert "ullage committed" not in stock["log"]
    assert stock["refusal"] is None


def test_a_committed_cache_is_all_that_the_layers_see():
    """The log's ledger names the cache, and the engine plans the blocks that were measured."""
    ours = run(PROGRAM, ULLAGE="1", ULLAGE_STRICT="1")
    assert f"ullage: {ours['blocks']} KV cache blocks fit." in ours["log"]
    assert f"ullage committed {ours['blocks']} blocks" in ours["log"]


def test_a_prompt_s_log_probabilities_are_refused_by_name_until_room_is_kept():
    refused = run(PROGRAM, ULLAGE="1", ULLAGE_STRICT="1")
    assert "ULLAGE_PROMPT_LOGPROBS=1" in refused["refusal"]
    kept = run(PROGRAM, ULLAGE="1", ULLAGE_STRICT="1", ULLAGE_PROMPT_LOGPROBS="1")
    assert kept["refusal"] is None
    assert kept["outputs"] == refused["outputs"]


def test_where_virtual_memory_is_refused_stock_s_cache_serves_and_one_line_says_why():
    refused = run(PROGRAM, "--few-addresses", ULLAGE="1")
    assert "ullage leaves this start to stock vLLM: The KV cache needs" in refused["log"]
    assert refused["outputs"] == run(PROGRAM)["outputs"]


def test_where_virtual_memory_is_refused_strict_ends_the_start_with_the_reason():
    with pytest.raises(AssertionError, match="MemoryRefused: The KV cache needs"):
        run(PROGRAM, "--few-addresses", ULLAGE="1", ULLAGE_STRICT="1")

"""Several ranks of one engine: stock's outputs, and one memory budget for all of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import (
    HERE,
    OUR_WORKER,
    STOCK_WORKER,
    each_rank_a_core,
    environment,
    limit_bytes,
    run,
    shared_memory_of_its_own,
    tiny_model,
)

from ullage.budget import default_margin_bytes
from ullage.compare.container import container
from ullage.compare.counters import Sampler
from ullage.errors import NotEnforced
from ullage.units import GIB

pytestmark = [pytest.mark.timeout(900)]
pytest.importorskip("vllm", reason="needs vLLM")
if len(os.sched_getaffinity(0)) < 2:
    pytest.skip("two ranks need two cores", allow_module_level=True)

PROGRAM = "generate.py"
OURS = {"ULLAGE": "1", "ULLAGE_STRICT": "1"}
LIMIT_BYTES = 4 * GIB
FRACTION = 0.15
WAYS = {
    "TP=2": ("--tensor-parallel", "2"),
    # Stock's second stage has no buffers in eager mode: only compiling runs its dummy step, and the
    # first request ends in `assert self.intermediate_tensors is not None`.
    "PP=2": ("--pipeline-parallel", "2", "--compiled"),
}


def generated(way: str, **switches: str) -> dict[str, Any]:
    answer: dict[str, Any] = run(PROGRAM, *WAYS[way], **each_rank_a_core(), **switches)
    return answer


@pytest.mark.parametrize("way", WAYS)
def test_outputs_equal_stock_s_token_for_token(way: str):
    stock, ours = generated(way), generated(way, **OURS)
    assert (stock["worker"], ours["worker"]) == (STOCK_WORKER, OUR_WORKER)
    assert ours["outputs"] == stock["outputs"]
    assert len({tuple(output) for output in stock["outputs"]}) > 1, "all prompts answer alike"


@pytest.mark.parametrize("way", WAYS)
def test_all_processes_together_use_the_fraction_that_was_given_and_no_more(way: str):
    """Stock gives every rank the whole fraction."""
    ours = generated(way, **OURS)
    assert 0.85 * FRACTION * limit_bytes() < ours["use_bytes"] <= FRACTION * limit_bytes()
    assert generated(way)["use_bytes"] > FRACTION * limit_bytes()


@pytest.mark.parametrize("way", WAYS)
def test_both_ranks_have_the_blocks_that_the_engine_plans_and_one_ledger_shows_both(way: str):
    ours = generated(way, **OURS)
    assert ours["log"].count(f"ullage committed {ours['blocks']} blocks") == 2
    assert ours["log"].count("KV cache blocks fit.") == 1
    assert "KV cache of rank 0" in ours["log"]
    assert "KV cache of rank 1" in ours["log"]


def test_a_pipeline_in_eager_mode_serves():
    answer = run(PROGRAM, "--pipeline-parallel", "2", **each_rank_a_core(), **OURS)
    assert answer["outputs"] == run(PROGRAM)["outputs"], "stages add in the order of one rank"


def test_workers_that_are_actors_of_ray_share_one_budget_as_well():
    pytest.importorskip("ray", reason="needs ray, which the engine's CPU build leaves out")
    by_ray = (PROGRAM, *WAYS["TP=2"], "--by-ray", "--prompts", "2")
    ours = run(*by_ray, **each_rank_a_core(), **OURS)
    assert ours["worker"] == OUR_WORKER
    assert ours["outputs"] == run(*by_ray, **each_rank_a_core())["outputs"]
    assert 0.85 * FRACTION * limit_bytes() < ours["use_bytes"] <= FRACTION * limit_bytes()
    assert "KV cache of rank 1" in ours["log"]


def test_where_nothing_fits_ranks_say_so_and_all_of_them_end():
    """The engine ends its other workers as soon as one has failed: not each gets to say why."""
    little = ("--utilization", "0.02")  # less than the processes take by then
    with pytest.raises(AssertionError, match="No KV cache fits into") as ended:
        # It waits for the end of its output, which every worker holds open.
        run(PROGRAM, *WAYS["TP=2"], *little, **each_rank_a_core(), **OURS)
    ranks = set(re.findall(r"\((Worker_TP\d+) pid=\d+\)", str(ended.value)))
    said = set(re.findall(r"\((Worker_TP\d+) pid=\d+\).*No KV cache fits", str(ended.value)))
    assert ranks == {"Worker_TP0", "Worker_TP1"}
    assert said, "it fits in no rank, and no rank says so"


@pytest.mark.parametrize("way", WAYS)
def test_in_a_container_without_a_memory_flag_all_of_it_is_used_and_none_is_killed(
    way: str, tmp_path: Path
):
    result = tmp_path / "result.json"
    program = [sys.executable, str(HERE / PROGRAM), str(tiny_model()), str(result)]
    try:
        with (
            shared_memory_of_its_own(),
            container(LIMIT_BYTES) as inside,
            Sampler(inside.group) as sampler,
        ):
            process = subprocess.run(
                inside.command([*program, "--no-memory-flag", *WAYS[way]]),
                env=environment(TMPDIR=str(tmp_path), **each_rank_a_core(), **OURS),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            counters = sampler.counters()
    except NotEnforced as error:
        pytest.skip(str(error))
    assert process.returncode == 0, process.stdout[-4000:]
    answer = json.loads(result.read_text())
    assert answer["worker"] == OUR_WORKER
    assert counters.oom_kills == 0
    assert (
        0.85 * LIMIT_BYTES < answer["use_bytes"] < LIMIT_BYTES - default_margin_bytes(LIMIT_BYTES)
    )
    assert (counters.peak_unreclaimable_bytes or 0) < LIMIT_BYTES

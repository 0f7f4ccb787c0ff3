"""The main job: a real engine with no memory flag, in a memory group that a kernel enforces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from engines import HERE, OUR_WORKER, environment, tiny_model

from ullage.compare.container import container
from ullage.compare.counters import Sampler
from ullage.errors import NotEnforced
from ullage.units import GIB

pytestmark = [pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="needs vLLM")

LIMIT_BYTES = 2 * GIB


def generate(scratch: Path, **switches: str) -> tuple[int, str, dict[str, object], int | None, int]:
    """Exit code, log, result, OOM kills and unreclaimable peak of one engine in the group."""
    result = scratch / "result.json"
    program = [sys.executable, str(HERE / "generate.py"), str(tiny_model()), str(result)]
    with container(LIMIT_BYTES) as inside, Sampler(inside.group) as sampler:
        process = subprocess.run(
            inside.command([*program, "--no-memory-flag"]),
            env=environment(TMPDIR=str(scratch), XDG_RUNTIME_DIR=str(scratch), **switches),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        counters = sampler.counters()
    answer = json.loads(result.read_text()) if result.exists() else {}
    return (
        process.returncode,
        process.stdout,
        answer,
        counters.oom_kills,
        counters.peak_unreclaimable_bytes or 0,
    )


def test_without_a_memory_flag_it_starts_and_serves_where_stock_refuses(tmp_path: Path):
    try:
        with container(LIMIT_BYTES):
            pass
    except NotEnforced as error:
        pytest.skip(str(error))
    stock, ours = tmp_path / "stock", tmp_path / "ours"
    stock.mkdir()
    ours.mkdir()

    code, log, _, _, _ = generate(stock)
    assert code != 0
    assert "is less than desired CPU memory utilization (0.92" in log

    code, log, answer, oom_kills, peak_bytes = generate(ours, ULLAGE="1", ULLAGE_STRICT="1")
    assert code == 0, log[-4000:]
    assert answer["worker"] == OUR_WORKER
    assert f"ullage committed {answer['blocks']} blocks" in log
    assert oom_kills == 0
    # It took what was there, and stayed below the limit.
    assert 0.85 * LIMIT_BYTES < peak_bytes < LIMIT_BYTES

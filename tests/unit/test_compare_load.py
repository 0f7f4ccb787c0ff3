"""What a client measured, and how it failed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ullage.compare.load import Load, apply_load, read_result


def test_a_client_without_a_result_has_failed_every_request(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"completed": 60, "outp')
    (tmp_path / "other.json").write_text("[]")
    for name in ("absent.json", "cut.json", "other.json"):
        lost = read_result(tmp_path / name, 62)
        assert (lost.completed, lost.failed, lost.output_tok_s) == (0, 62, None)
        assert lost.error == f"the client left no whole result in {name}"


def test_a_client_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('one'); print('no such tokenizer'); raise SystemExit(3)"
    monkeypatch.setattr(Load, "command", lambda *_: [sys.executable, "-c", code])
    load = Load(input_tokens=1, output_tokens=1, concurrency=1, prompts=5)
    result = apply_load(load, tmp_path, 1, os.environ, tmp_path)
    assert result.error == "the client ended with exit code 3: no such tokenizer"
    assert (result.completed, result.failed) == (0, 5)


def test_a_clients_result_is_read_by_its_own_names(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    measured = {"output_throughput": 51.4, "median_ttft_ms": 31e3, "median_tpot_ms": 324.5}
    file.write_text(json.dumps({**measured, "completed": 60, "failed": 0}))
    result = read_result(file, 62)
    assert (result.completed, result.failed, result.output_tok_s) == (60, 2, 51.4)
    file.write_text(json.dumps({**measured, "completed": 0, "failed": 62}))
    assert read_result(file, 62).ttft_ms_median is None


def test_a_sequence_is_prompt_and_answer() -> None:
    load = Load(input_tokens=192, output_tokens=64, concurrency=1, prompts=1)
    assert load.sequence_tokens == 256

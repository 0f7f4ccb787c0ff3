"""The verdict and the document of the benchmark with several engines.  No engine starts."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="comes with the engine")

from ullage.compare.server import ServerSettings
from ullage.errors import EngineFailed, NotEnforced
from ullage.units import GIB

several_engines = importlib.import_module("several_engines")

SETTINGS = ServerSettings(
    model=Path("/model"),
    dtype="bfloat16",
    compiled=False,
    max_model_len=2048,
    max_num_batched_tokens=2048,
    max_num_seqs=52,
    cpus="0-1",
    port=None,
    extra=(),
)


class Engine:
    """Commits `blocks`, or does not become ready."""

    def __init__(self, log: Path, blocks: int | None) -> None:
        self.log = log
        self.blocks = blocks

    def wait_ready(self) -> float:
        if self.blocks is None:
            raise EngineFailed("no room")
        self.log.write_text(f"x\nullage committed {self.blocks} blocks\n")
        return 1.0


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What was launched; every engine commits 100 blocks and one for each token of its step."""
    found: list[tuple[Any, Any]] = []

    def launched(inside: Any, settings: Any, side: Any, log: Path) -> Any:
        found.append((settings, side))
        return contextlib.nullcontext(Engine(log, 100 + settings.max_num_batched_tokens))

    counters = SimpleNamespace(oom_kills=0, peak_unreclaimable_bytes=7 * GIB)
    sampler = SimpleNamespace(counters=lambda: counters)
    monkeypatch.setattr(several_engines, "launched", launched)
    monkeypatch.setattr(several_engines, "check_machine", lambda limit_bytes: None)
    monkeypatch.setattr(
        several_engines, "container", lambda _: contextlib.nullcontext(SimpleNamespace(group=None))
    )
    monkeypatch.setattr(several_engines, "Sampler", lambda group: contextlib.nullcontext(sampler))
    where = "cgroup v1, below group /secret"
    monkeypatch.setattr(several_engines, "check_place", lambda limit_bytes: where)
    monkeypatch.setattr(several_engines, "small_settings", lambda: SETTINGS)
    monkeypatch.setattr(
        several_engines, "demo_trial", lambda *_: (SimpleNamespace(settings=SETTINGS), where)
    )
    return found


def options(output: Path, **changed: Any) -> argparse.Namespace:
    told = {"output": output, "demo": False, "repeats": 1, "only": None, **changed}
    return argparse.Namespace(**told)


def document(directory: Path, name: str = "several_engines") -> Any:
    return json.loads((directory / f"{name}.json").read_text())


def test_every_order_of_two_and_three_engines_is_in_the_document(
    tmp_path: Path, launches: list[Any]
) -> None:
    runs = several_engines.measure(options(tmp_path), lambda text: None)
    told = document(tmp_path)
    assert told["schema"] == "ullage.benchmark.several_engines/1"
    assert len(told["runs"]) == len(runs) == 3 + 7
    assert {tuple(run["blocks"]) for run in runs} == {(2148, 1124), (2148, 1124, 612)}
    assert {run["limit_bytes"] for run in runs} == {4 * GIB, 6 * GIB}
    assert told["summary"] == {
        "spread_blocks": {"2": [0, 0], "3": [0, 0, 0]},
        "oom_kills": 0,
        "failed": 0,
    }
    assert several_engines.holds(runs)


def test_the_demo_model_has_a_larger_limit_and_a_document_of_its_own(
    tmp_path: Path, launches: list[Any]
) -> None:
    runs = several_engines.measure(options(tmp_path, demo=True, only=["0-1"]), lambda text: None)
    assert [run["limit_bytes"] for run in runs] == [8 * GIB]
    assert document(tmp_path, "several_engines_demo")["settings"]["limit_bytes_each"] == 4 * GIB
    assert not (tmp_path / "several_engines.json").exists()


def test_each_engine_has_its_share_and_its_batch_size_and_all_have_one_lease_folder(
    tmp_path: Path, launches: list[Any]
) -> None:
    several_engines.measure(options(tmp_path, only=["1-0"]), lambda text: None)
    assert [settings.max_num_batched_tokens for settings, _ in launches] == [1024, 2048]
    variables = [dict(side.variables) for _, side in launches]
    assert [each["ULLAGE_SHARE"] for each in variables] == ["1/2", "1/2"]
    assert len({each["XDG_RUNTIME_DIR"] for each in variables}) == 1
    assert all(each["ULLAGE_STRICT"] == "1" for each in variables)


def test_a_run_is_saved_before_the_next_begins(
    tmp_path: Path, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = several_engines.run_once

    def then_stopped(trial: Any) -> Any:
        if trial.order == (1, 0):
            raise KeyboardInterrupt
        return once(trial)

    monkeypatch.setattr(several_engines, "run_once", then_stopped)
    with pytest.raises(KeyboardInterrupt):
        several_engines.measure(options(tmp_path), lambda text: None)
    assert [run["order"] for run in document(tmp_path)["runs"]] == [[0, 1]]


def test_an_order_that_cannot_run_is_an_error_in_the_document_and_the_next_one_runs(
    tmp_path: Path, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(limit_bytes: int) -> None:
        if limit_bytes == 6 * GIB:
            raise NotEnforced("too small")

    monkeypatch.setattr(several_engines, "check_machine", check)
    only = ["0-1", "0-1-2"]
    runs = several_engines.measure(options(tmp_path, only=only), lambda text: None)
    assert [run["errors"] for run in runs] == [[], ["too small"]]
    assert runs[1]["blocks"] == [None, None, None]
    assert not several_engines.holds(runs)
    assert "too small" in (tmp_path / "several_engines.md").read_text()


def run(blocks: list[int | None], **changed: Any) -> dict[str, Any]:
    return {"engines": 2, "blocks": blocks, "oom_kills": 0, **changed}


@pytest.mark.parametrize(
    ("second", "holds"),
    [
        (run([101, 49]), True),
        (run([102, 50]), False),
        (run([100, None]), False),
        (run([100, 50], oom_kills=1), False),
        (run([100, 50], oom_kills=None), False),
    ],
)
def test_it_holds_where_blocks_differ_by_one_at_most_and_none_is_killed(
    second: dict[str, Any], holds: bool
) -> None:
    assert several_engines.holds([run([100, 50]), second]) is holds


def test_an_engine_that_does_not_start_has_no_blocks(tmp_path: Path) -> None:
    errors: list[str] = []
    assert several_engines.committed(Engine(tmp_path / "0.log", None), errors) is None
    assert errors == ["no room"]

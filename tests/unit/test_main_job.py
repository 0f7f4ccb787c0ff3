"""The long comparison's record: what was measured, and that an interrupt keeps it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ullage.errors import NotEnforced
from ullage.report.comparison import Comparison, Machine, Settings, Side, Start
from ullage.units import GIB

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "main_job.py"


@pytest.fixture
def main_job(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("main_job", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "main_job", module)
    spec.loader.exec_module(module)
    return module


def comparison(*starts: Start) -> Comparison:
    return Comparison(
        machine=Machine(cpu="x", cores=2, memory_bytes=8 * GIB, kernel="6", cgroup="v1"),
        versions={},
        settings=Settings(
            model="demo model",
            starts=5,
            memory_bytes=4 * GIB,
            files="cold",
            mode="eager",
            dtype="bfloat16",
            weights_bytes=1,
            kv_token_bytes=None,
            flags=(),
            input_tokens=1,
            output_tokens=1,
            concurrency=1,
            prompts=1,
        ),
        sides={
            "stock": Side(label="stock, default", flags=(), starts=starts),
            "ullage": Side(label="ullage, default", flags=(), starts=()),
        },
    )


def test_what_was_finished_is_written_with_commit_and_logs_however_it_ends(
    main_job: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = iter(["aaa", "aaa", "bbb, with changes in src"])

    def interrupted(request: object, phase: object, finished: object) -> None:
        finished(comparison(Start(started=False, error="no room")))  # type: ignore[operator]
        written = json.loads((tmp_path / "main_job-4GiB-cold.json").read_text())
        assert written["commit"] == "aaa"
        finished(comparison(*[Start(started=False, error="no room")] * 2))  # type: ignore[operator]
        raise KeyboardInterrupt

    monkeypatch.setattr(main_job, "commit", lambda: next(commits))
    monkeypatch.setattr(main_job, "compare", interrupted)
    monkeypatch.setattr(main_job, "cached_model", lambda shape, progress: tmp_path)
    with pytest.raises(KeyboardInterrupt):
        main_job.run("4GiB-cold", main_job.SCENARIOS["4GiB-cold"], tmp_path)
    written = json.loads((tmp_path / "main_job-4GiB-cold.json").read_text())
    assert len(written["sides"]["stock"]["starts"]) == 2
    assert written["commit"] == "aaa at the start, bbb, with changes in src at the end"
    assert written["logs"].startswith("logs/4GiB-cold-")
    assert "no room" in (tmp_path / "main_job-4GiB-cold.md").read_text()


def test_a_scenario_that_fails_is_named_and_the_next_one_can_run(
    main_job: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(*_: object) -> None:
        raise NotEnforced("No limit here. Run as root.")

    monkeypatch.setattr(main_job, "run", refused)
    monkeypatch.setattr(main_job.psutil, "virtual_memory", lambda: Machine64)
    assert not main_job.measure("4GiB-cold", tmp_path)
    assert capsys.readouterr().err == "4GiB-cold: No limit here. Run as root.\n"


class Machine64:
    total = 64 * GIB

"""`make setup`: an environment is believed in when it is whole, and as long as it fits."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "setup.py"


class Pip:
    """Stands in for pip: remembers what it was asked for, and fails at the given call."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.fails_at = fails_at

    def __call__(self, *arguments: str) -> None:
        self.calls.append(arguments)
        if len(self.calls) == self.fails_at:
            raise subprocess.CalledProcessError(1, ["pip"])


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, in a project of its own, with a venv that takes no time and no network."""
    spec = importlib.util.spec_from_file_location("setup_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = tmp_path / ".venv"
    for name, value in {
        "VENV": venv,
        "ENGINE_STAMP": venv / "engine.stamp",
        "COMPLETE_STAMP": venv / "complete.stamp",
        "REQUIREMENTS": tmp_path,
        "METADATA": tmp_path,
        "torch_source": lambda: (),
    }.items():
        monkeypatch.setattr(module, name, value)
    (tmp_path / "engine.txt").write_text("engine==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: venv.mkdir())
    return module


def run(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, pip: Pip) -> int:
    monkeypatch.setattr(setup, "pip", pip)
    code: int = setup.main()
    return code


def test_a_whole_run_leaves_both_stamps(setup: ModuleType, monkeypatch: pytest.MonkeyPatch):
    pip = Pip()
    assert run(setup, monkeypatch, pip) == 0
    assert setup.ENGINE_STAMP.read_text() == setup.engine_inputs()
    assert setup.COMPLETE_STAMP.is_file()
    assert len(pip.calls) == 5


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_step_that_fails_leaves_nothing_that_is_believed_in(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, step: int
):
    assert run(setup, monkeypatch, Pip(fails_at=step)) == 1
    assert not setup.COMPLETE_STAMP.exists()
    assert setup.ENGINE_STAMP.exists() == (step == 5)
    assert run(setup, monkeypatch, Pip()) == 0
    assert setup.COMPLETE_STAMP.is_file()


def test_the_engine_is_built_again_only_when_its_requirements_change(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    run(setup, monkeypatch, Pip())
    again, changed = Pip(), Pip()
    run(setup, monkeypatch, again)
    assert [call[-2] for call in again.calls] == ["-e"]
    (setup.REQUIREMENTS / "engine.txt").write_text("engine==2\n")
    run(setup, monkeypatch, changed)
    assert len(changed.calls) == 5


def test_only_torch_is_resolved_and_everything_else_is_taken_as_pinned(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    pip = Pip()
    run(setup, monkeypatch, pip)
    assert ["--no-deps" in call for call in pip.calls] == [False, True, True, True, True]


def test_progress_names_the_package_and_then_counts(setup: ModuleType):
    collecting = ["Looking in links: there\n", "Collecting numpy==2.3.5 (from -r engine.txt)\n"]
    local = ["Processing ./wheels/torch-2.13.0+cpu-cp311-cp311-linux.whl\n"]
    assert setup.doing([]) == "pip"
    assert setup.doing(collecting) == "Collecting numpy==2.3.5"
    assert setup.doing(collecting + local) == "Processing torch-2.13.0+cpu"
    (setup.VENV / "lib" / "python3.11" / "site-packages" / "numpy-2.3.5.dist-info").mkdir(
        parents=True
    )
    installing = ["Installing collected packages: torch, numpy\n"]
    assert setup.doing(collecting + installing) == "Installing, 1 packages so far"

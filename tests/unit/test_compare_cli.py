"""Arguments of `compare` and `demo`: a wrong one is one sentence, and nothing is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fakes.checkpoint import write_weights
from ullage.cli.compare import compare
from ullage.cli.demo import demo
from ullage.compare import run as run_module
from ullage.compare.flags import check_extra
from ullage.compare.request import Request
from ullage.errors import DoesNotFit, EngineFailed, NotEnforced, UllageError, UnknownModel, Usage


def invoke(command: Callable[..., None], *arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, arguments)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["--memory", "4"], Usage, "--memory: '4' is not a size with a unit. Write it like 4GiB."),
        (["--memory", "4XiB"], Usage, "'XiB'"),
        (["--json", "--markdown"], Usage, "Give one of them"),
        (["--dtype", "int4"], Usage, "Use one of bfloat16, float16, float32"),
        ([], UnknownModel, "it has no config.json"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_leaves_nothing(
    arguments: list[str], kind: type[UllageError], words: str, elsewhere: Path
) -> None:
    result = invoke(compare, str(elsewhere), *arguments)
    assert isinstance(result.exception, kind)
    assert words in str(result.exception)
    assert result.stdout == ""
    assert list(elsewhere.iterdir()) == []


def test_a_limit_below_the_weights_says_what_would_do(elsewhere: Path) -> None:
    (elsewhere / "config.json").write_text(json.dumps({"model_type": "llama"}))
    write_weights(elsewhere / "model.safetensors", "F32", 1 << 29, 2 << 30)
    result = invoke(compare, str(elsewhere), "--memory", "1GiB", "--dtype", "float32")
    assert result.exception is not None
    assert "take 2.00 GiB, more than the limit of 1.00 GiB" in str(result.exception)


@pytest.mark.parametrize("memory", ["4", "1000000GiB"])
def test_the_demo_refuses_a_size_before_it_makes_a_model(
    memory: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere / "cache"))
    result = invoke(demo, "--memory", memory)
    assert isinstance(result.exception, Usage)
    assert not (elsewhere / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "check", "kind"),
    [
        (["--memory", "512MiB"], None, DoesNotFit),
        ([], "engine_command", EngineFailed),
        ([], "check_plugin", EngineFailed),
        ([], "check_enforced", NotEnforced),
    ],
)
def test_the_demo_makes_no_model_where_it_could_not_run(
    arguments: list[str],
    check: str | None,
    kind: type[UllageError],
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: object) -> None:
        raise kind("no")

    for name in ("engine_command", "check_plugin", "check_enforced", "check_machine"):
        monkeypatch.setattr(run_module, name, refuse if name == check else lambda _: "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere / "cache"))
    result = invoke(demo, *arguments)
    assert isinstance(result.exception, kind)
    assert not (elsewhere / "cache").exists()


def test_what_is_left_of_an_unfinished_comparison_is_said(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(request: Request, phase: object) -> None:
        request.output.mkdir()
        (request.output / "comparison.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "compare", interrupted)
    result = invoke(compare, str(elsewhere), "--output", "logs", "--unconfined")
    assert "What there is of the result: logs/comparison.json" in result.stderr
    assert result.stdout == ""


def test_an_earlier_result_is_not_taken_for_this_ones(elsewhere: Path) -> None:
    (elsewhere / "logs").mkdir()
    (elsewhere / "logs" / "comparison.json").touch()
    result = invoke(compare, str(elsewhere), "--output", "logs", "--unconfined")
    assert isinstance(result.exception, UnknownModel)
    assert result.stderr == ""


def test_a_flag_of_the_engine_that_is_ours_is_a_usage_error(elsewhere: Path) -> None:
    with pytest.raises(Usage, match="Put --dtype before --"):
        check_extra(["--dtype", "float16"])


@pytest.mark.parametrize("command", [compare, demo])
def test_every_option_has_a_help_text(command: Callable[..., None]) -> None:
    app = typer.Typer()
    app.command()(command)
    parameters = typer.main.get_command(app).params
    assert all(getattr(parameter, "help", None) for parameter in parameters)

"""Arguments of `compare` and `demo`: a wrong one is one sentence, and nothing is started."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ullage.cli.compare import compare
from ullage.cli.demo import demo
from ullage.errors import UllageError, UnknownModel, Usage


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
    tensor = {"dtype": "F32", "shape": [1 << 29], "data_offsets": [0, 2 << 30]}
    header = json.dumps({"w": tensor}).encode()
    (elsewhere / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
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


@pytest.mark.parametrize("command", [compare, demo])
def test_every_option_has_a_help_text(command: Callable[..., None]) -> None:
    app = typer.Typer()
    app.command()(command)
    parameters = typer.main.get_command(app).params
    assert all(getattr(parameter, "help", None) for parameter in parameters)

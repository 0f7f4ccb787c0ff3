"""`ullage serve` before it hands over: what cannot fit, and what is to be explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.checkpoint import write_hollow
from fakes.engine import FakeEngine
from ullage.cli.serve import refuse_if_too_large, switched_on
from ullage.devices import host
from ullage.devices.base import MemoryParts, Reading
from ullage.errors import DoesNotFit, Unreadable
from ullage.units import GIB, MIB


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A gigabyte of weights in bfloat16."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    shapes = {"model.layers.0.mlp.up_proj.weight": (512 * MIB,)}
    write_hollow(directory / "model.safetensors", shapes)
    return directory


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ULLAGE_RECEIPTS", str(tmp_path / "receipts"))
    return tmp_path / "receipts"


def limit(monkeypatch: pytest.MonkeyPatch, available_bytes: int) -> None:
    """A limit of 2 GiB, some of it taken."""
    parts = MemoryParts(anon_bytes=2 * GIB - available_bytes, shmem_bytes=0)
    reading = Reading(source="cgroup1:/job", scope="group", total_bytes=2 * GIB, parts=parts)
    monkeypatch.setattr(host, "read", lambda: [reading])


def test_weights_that_cannot_fit_are_refused_with_the_limit_that_would_do_and_a_receipt(
    model: Path, state: Path, monkeypatch: pytest.MonkeyPatch
):
    limit(monkeypatch, GIB - 1)
    with pytest.raises(DoesNotFit) as refused:
        refuse_if_too_large([str(model)], {})
    assert str(refused.value) == (
        f"The weights of '{model}' take at least 1.00 GiB, and at most 1.00 GiB of 2.00 GiB "
        "(cgroup1:/job) can be taken. Raise the memory limit to 3.81 GiB, with 1.81 GiB for the "
        "engine's processes."
    )
    (receipt,) = (json.loads(path.read_text()) for path in state.iterdir())
    assert receipt["outcome"] == {"kind": "refused", "reason": str(refused.value)}
    assert receipt["model"] == str(model)


@pytest.mark.parametrize("flags", [[], ["--dtype", "float32", "--max-model-len", "9999999"]])
def test_weights_that_may_fit_are_left_to_the_engine(
    model: Path, state: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
):
    limit(monkeypatch, GIB)
    refuse_if_too_large([str(model), *flags], {})
    assert not state.exists()


@pytest.mark.parametrize(
    "arguments", [["--quantization", "fp8"], ["--load-format", "dummy"], ["-tp", "2"]]
)
def test_weights_that_options_may_change_are_left_to_the_engine(
    model: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
):
    limit(monkeypatch, 0)
    refuse_if_too_large([str(model), *arguments], {})
    with pytest.raises(DoesNotFit):
        refuse_if_too_large([str(model)], {})


@pytest.mark.parametrize("name", ["org/model", "/absent", "--port"])
def test_a_model_that_is_no_directory_is_left_to_the_engine(
    name: str, monkeypatch: pytest.MonkeyPatch, state: Path
):
    limit(monkeypatch, 0)
    refuse_if_too_large([name, "8000"], {})
    assert not state.exists()


def test_a_host_that_cannot_be_read_refuses_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, state: Path
):
    def refused() -> None:
        raise Unreadable("It cannot. Do this.")

    monkeypatch.setattr(host, "read", refused)
    refuse_if_too_large([str(model)], {})
    assert not state.exists()


class Explaining(FakeEngine):
    ENTRY = "import os, sys\nprint(*sys.argv[1:], os.environ.get('ULLAGE_EXPLAIN'), sep='|')\n"


def test_explain_is_ours_before_the_model_and_the_engine_s_behind_it(tmp_path: Path):
    engine = Explaining(tmp_path / "engine")
    engine.add_distribution()
    engine.add_plugin()
    ours = engine.serve("--explain", "org/model", "--port", "1")
    assert ours.stdout == "serve|org/model|--port|1|1\n"
    theirs = engine.serve("org/model", "--explain")
    assert theirs.stdout == "serve|org/model|--explain|None\n"


def test_explain_overrules_the_variable_and_its_absence_leaves_it():
    assert switched_on({"ULLAGE_EXPLAIN": "0"}, explain=True)["ULLAGE_EXPLAIN"] == "1"
    assert switched_on({"ULLAGE_EXPLAIN": "1"})["ULLAGE_EXPLAIN"] == "1"
    assert "ULLAGE_EXPLAIN" not in switched_on({})

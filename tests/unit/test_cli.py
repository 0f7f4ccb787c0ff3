"""The command line as a person meets it: arguments, exit codes, sentences."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import typer

import ullage
from fakes.engine import FakeEngine, run
from ullage import cli
from ullage.accounting.leases import Lease, Process
from ullage.cli.serve import check_model, switched_on
from ullage.compare.engine import engine_command
from ullage.errors import DoesNotFit, EngineFailed, UnknownModel, Unreadable, Usage
from ullage.report.json import document
from ullage.report.leases import LeasesReport, leases_text

COMMANDS = sorted(command.callback.__name__ for command in cli.app.registered_commands)


def test_version_is_the_package_s():
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"ullage {ullage.__version__}\n")


def test_without_arguments_it_shows_the_help_with_every_command():
    result = run()
    assert result.returncode in (0, 2)
    listed = result.stdout + result.stderr
    assert all(f"\n  {name} " in listed for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"]])
def test_a_usage_error_ends_with_2_and_no_traceback(arguments: list[str]):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "Usage: " in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain_text_within_80_columns(command: str):
    result = run(command, "--help")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_shell_completes_commands():
    words = {"COMP_WORDS": "ullage de", "COMP_CWORD": "1", "_ULLAGE_COMPLETE": "complete_bash"}
    program = "from ullage.cli import app; app(prog_name='ullage')"
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **words},
    )
    assert sorted(result.stdout.split()) == [name for name in COMMANDS if name.startswith("de")]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_goes_away_gets_no_traceback(options: list[str]):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "ullage", "devices", *options],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "ullage", "devices"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 3
    assert result.stderr == "ullage: There is no room for the output. Free some disk space.\n"


@pytest.mark.parametrize("fault", [DoesNotFit, Usage, UnknownModel, Unreadable, EngineFailed])
def test_an_expected_fault_is_its_sentence_on_stderr_and_its_exit_code(
    fault: type[DoesNotFit], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def raising() -> None:
        raise fault("It is so. Do this.")

    monkeypatch.setattr(cli, "app", raising)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == fault.exit_code
    assert capsys.readouterr() == ("", "ullage: It is so. Do this.\n")


def test_an_interrupted_command_ends_with_130_and_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    app = typer.Typer()

    @app.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr("sys.argv", ["ullage"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "ullage: Interrupted. Nothing of it is left running.\n")


def test_a_fault_that_nobody_expected_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main()


ENGINE_ARGUMENTS = ["--dtype", "float32", "-O0", "--served-model-name", "a b", "--help"]


def test_serve_hands_every_argument_to_the_engine_in_its_order(tmp_path: Path):
    engine = FakeEngine(tmp_path)
    engine.add_distribution()
    engine.add_plugin()
    result = engine.serve("org/model", *ENGINE_ARGUMENTS, ULLAGE="0")
    assert result.returncode == 0, result.stderr
    passed = ["vllm.entrypoints.cli.main", "serve", "org/model", *ENGINE_ARGUMENTS, "1"]
    assert result.stdout.rstrip("\n").split("|") == passed


def test_serve_takes_options_before_the_model_too(tmp_path: Path):
    engine = FakeEngine(tmp_path)
    engine.add_distribution()
    engine.add_plugin()
    result = engine.serve("--port", "8001", "org/model")
    assert result.stdout.rstrip("\n").split("|")[2:] == ["--port", "8001", "org/model", "1"]


def test_serve_refuses_a_switch_with_no_value_before_the_engine_starts(tmp_path: Path):
    engine = FakeEngine(tmp_path)
    engine.add_distribution()
    engine.add_plugin()
    result = engine.serve("org/model", ULLAGE_MARGIN="1")
    assert (result.returncode, result.stdout) == (2, "")
    assert "ULLAGE_MARGIN: '1' is not a size with a unit. Write it like 1GiB." in result.stderr


def test_serve_leaves_another_engine_s_front_end_behind():
    assert "ULLAGE_FRONTEND" not in switched_on({"ULLAGE_FRONTEND": "1", "HOME": "/"})


@pytest.fixture
def _no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", missing)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: ModuleSpec("vllm", None, origin="x"))


@pytest.mark.usefixtures("_no_distribution")
def test_serve_starts_the_api_server_where_no_distribution_is_named_vllm():
    command = engine_command(["serve", "org/model", "--port", "8001"])
    module = command[command.index("-m") + 1 :]
    assert module == [
        "vllm.entrypoints.openai.api_server",
        "--model",
        "org/model",
        "--port",
        "8001",
    ]


@pytest.mark.usefixtures("_no_distribution")
def test_a_client_needs_the_distribution():
    with pytest.raises(EngineFailed, match="`vllm bench` asks for one"):
        engine_command(["bench", "serve"])


def test_serve_refuses_an_engine_that_would_not_load_the_plugin(tmp_path: Path):
    engine = FakeEngine(tmp_path)
    engine.add_distribution()
    engine.add_plugin()
    result = engine.serve("org/model", VLLM_PLUGINS="other")
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr == (
        "ullage: VLLM_PLUGINS='other' leaves ullage's plugin out, so vLLM would run as stock. "
        "Unset it, or add ullage to it.\n"
    )
    assert engine.serve("org/model", VLLM_PLUGINS="ullage").returncode == 0


def test_serve_without_an_engine_says_so_and_ends_with_4(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EngineFailed, match="vLLM is not installed beside"):
        engine_command(["serve", "org/model"])


def test_serve_without_a_model_is_a_usage_error():
    result = run("serve")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ullage: There is no model to serve.")


def test_serve_refuses_a_directory_without_a_model(tmp_path: Path):
    result = run("serve", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr == (
        f"ullage: The directory '{tmp_path}' has no config.json. Name the directory of a model.\n"
    )


def test_serve_refuses_a_directory_that_it_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(UnknownModel, match="cannot be read: Permission denied"):
        check_model(str(tmp_path))


@pytest.mark.parametrize("path", ["/nowhere/model", "./nowhere", "../nowhere"])
def test_serve_refuses_a_path_that_does_not_exist(path: str):
    result = run("serve", path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "does not exist" in result.stderr


def test_leases_says_where_it_looked_and_what_it_found(tmp_path: Path):
    (tmp_path / "ullage").mkdir(mode=0o700)
    (tmp_path / "ullage" / "x.json").write_text("{}")
    result = run("leases", XDG_RUNTIME_DIR=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == (
        f"No engine holds a lease.\nnot counted: {tmp_path}/ullage/x.json is no lease\n"
    )
    answer = json.loads(run("leases", "--json", XDG_RUNTIME_DIR=str(tmp_path)).stdout)
    assert answer["schema"] == "ullage.leases/1"
    assert answer["damaged"] == [f"{tmp_path}/ullage/x.json"]


def test_a_lease_of_an_engine_that_has_ended_is_named_and_removed(tmp_path: Path):
    (tmp_path / "ullage").mkdir(mode=0o700)
    engine = Process(boot_id="before", pid_namespace="pid:[1]", pid=5, start_time_ticks=7)
    lease = Lease(
        worker=engine,
        frontend_pid=5,
        limit="host",
        limits=("host",),
        limit_bytes=1 << 30,
        share="1/2",
        promised_bytes=1 << 29,
        taken_bytes=0,
    )
    (tmp_path / "ullage" / "5-7.json").write_text(document(lease))
    first, second = (run("leases", XDG_RUNTIME_DIR=str(tmp_path)).stdout for _ in range(2))
    assert first == "No engine holds a lease.\nremoved: process 5 has ended\n"
    assert second == "No engine holds a lease.\n"
    text = leases_text(LeasesReport(folder="", living=(lease,), removed=(), unclear=(), damaged=()))
    row = text.splitlines()[1]
    assert " ".join(row.split()) == "5 1/2 1.00 GiB 0.50 GiB 0.00 GiB 0.50 GiB"

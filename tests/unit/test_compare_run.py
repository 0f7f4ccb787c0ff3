"""What is checked before any engine is started, and what the sides share."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path

import pytest

from fakes.checkpoint import LLAMA, write_model
from ullage.compare import run as run_module
from ullage.compare.container import Container
from ullage.compare.request import Request
from ullage.compare.run import check_machine, cpu_list, make_output, prepare_trial
from ullage.compare.server import (
    ServerSettings,
    check_port,
    environment,
    free_port,
    inherited_environment,
    server_command,
)
from ullage.compare.starts import STOCK, ULLAGE, tuned
from ullage.devices import host
from ullage.devices.base import Reading
from ullage.errors import DoesNotFit, UllageError, Usage
from ullage.report.comparison import Start
from ullage.units import GIB


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def request_(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Request:
    monkeypatch.setattr(run_module, "engine_command", lambda subcommand: list(subcommand))
    monkeypatch.setattr(run_module, "check_plugin", lambda environment: None)
    return Request(
        model=model,
        model_label="model",
        memory_bytes=4 * GIB,
        unconfined=True,
        output=tmp_path / "out",
        dtype="bfloat16",
        extra=("--block-size", "32"),
    )


def message(error: pytest.ExceptionInfo[UllageError]) -> str:
    return str(error.value)


def test_the_load_fills_80_percent_of_the_estimated_pool(request_: Request) -> None:
    trial, _ = prepare_trial(request_)
    pool = trial.checkpoint.pool_tokens(4 * GIB)
    assert pool is not None
    in_flight = trial.load.concurrency * trial.load.sequence_tokens
    assert 0.75 * pool < in_flight <= 0.8 * pool
    assert trial.load.prompts == trial.load.concurrency
    assert trial.settings.max_num_seqs == trial.load.concurrency


def test_all_sides_share_every_flag(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage.compare.server.engine_command", lambda words: ["vllm", *words])
    trial, _ = prepare_trial(request_)
    commands = [server_command(trial.settings, side.flags, 8000) for side in (STOCK, ULLAGE)]
    assert commands[0] == commands[1]
    assert "--enforce-eager" in commands[0]
    assert commands[0][-2:] == ["--block-size", "32"]
    assert not {"--gpu-memory-utilization", "--kv-cache-memory-bytes"} & set(commands[0])


def test_no_side_sees_what_the_user_set_for_ullage_or_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ULLAGE", "ULLAGE_MARGIN", "VLLM_CPU_KVCACHE_SPACE", "VLLM_PLUGINS"):
        monkeypatch.setenv(name, "1")
    mine = inherited_environment()
    assert mine["PATH"]
    (tmp_path / "stock").mkdir()
    (tmp_path / "ullage").mkdir()
    stock = environment(mine, dict(STOCK.variables), tmp_path / "stock", "0-1")
    ours = environment(mine, dict(ULLAGE.variables), tmp_path / "ullage", "0-1")
    for side in (stock, ours):
        assert not {"ULLAGE_MARGIN", "VLLM_CPU_KVCACHE_SPACE", "VLLM_PLUGINS"} & set(side)
    assert not [name for name in stock if name.startswith("ULLAGE")]
    assert ours["ULLAGE"] == "1"
    assert ours["ULLAGE_RECEIPTS"].startswith(str(tmp_path))
    assert stock["HF_HUB_OFFLINE"] == "1"
    assert Path(stock["TMPDIR"]).is_dir()


def test_a_limit_smaller_than_the_weights_is_refused_with_one_that_would_do(
    request_: Request,
) -> None:
    with pytest.raises(DoesNotFit) as error:
        prepare_trial(dataclasses.replace(request_, memory_bytes=GIB // 2))
    assert "1.00 GiB, more than the limit of 0.50 GiB" in message(error)
    assert "--memory 3GiB" in message(error)


def test_a_limit_larger_than_the_machine_is_refused(request_: Request) -> None:
    huge = dataclasses.replace(request_, memory_bytes=1 << 60, unconfined=False, concurrency=1)
    with pytest.raises(Usage, match="more than this machine's"):
        prepare_trial(huge)


def test_a_limit_above_that_of_a_group_around_us_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = [
        Reading(source="meminfo", scope="host", total_bytes=64 * GIB),
        Reading(source="cgroup2:/job", scope="group", total_bytes=3 * GIB),
        Reading(source="cgroup2:/", scope="group", total_bytes=None),
    ]
    monkeypatch.setattr(host, "read", lambda: readings)
    check_machine(3 * GIB)
    with pytest.raises(Usage, match=r"4\.00 GiB is more than cgroup2:/job's 3\.00 GiB.*3072MiB"):
        check_machine(4 * GIB)


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--gpu-memory-utilization=0.9", "--tune-stock"),
        ("--kv_cache_memory_bytes", "--tune-stock"),
        ("--gpu-mem", "--tune-stock"),
        ("--max-num-seqs", "--concurrency"),
        ("--port", "--port"),
        ("--no-enforce-eager", "--compile"),
        ("--kv-cache-dtype", "Leave it out"),
    ],
)
def test_a_flag_that_the_comparison_sets_itself_is_refused(
    request_: Request, flag: str, instead: str
) -> None:
    with pytest.raises(Usage) as error:
        prepare_trial(dataclasses.replace(request_, extra=("--block-size", "32", flag, "8")))
    assert instead in message(error)


def comparing(monkeypatch: pytest.MonkeyPatch, starts: list[Start | BaseException]) -> None:
    """Starts that need no engine: the given ones, one after the other."""
    coming = iter(starts)

    def run_start(*_: object) -> Start:
        start = next(coming)
        if isinstance(start, BaseException):
            raise start
        return start

    monkeypatch.setattr("ullage.compare.starts.run_start", run_start)


REFUSED = Start(started=False, error="no room")
SERVED = Start(started=True, error=None, kv_tokens=7, failed=0)


def test_an_interrupted_comparison_leaves_the_starts_that_were_finished(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparing(monkeypatch, [REFUSED, SERVED, REFUSED, KeyboardInterrupt()])
    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_module.compare(
            dataclasses.replace(request_, starts=2),
            lambda text: None,
            lambda so_far: told.append(sum(len(side.starts) for side in so_far.sides.values())),
        )
    assert told == [0, 1, 2, 3]
    assert [path.name for path in request_.output.iterdir()] == ["comparison.json"]
    left = json.loads((request_.output / "comparison.json").read_text())
    assert [len(left["sides"][side]["starts"]) for side in ("stock", "ullage")] == [2, 1]
    assert left["settings"]["starts"] == 2


def test_an_interrupted_search_leaves_what_was_tried(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "check_place", lambda limit_bytes: "cgroup v2, /ullage")
    outcomes = [REFUSED, SERVED, KeyboardInterrupt()]

    def run_start(*_: object) -> Start:
        outcome = outcomes.pop(0)
        if isinstance(outcome, KeyboardInterrupt):
            raise outcome
        return outcome

    monkeypatch.setattr("ullage.compare.tune.run_start", run_start)
    with pytest.raises(KeyboardInterrupt):
        run_module.compare(dataclasses.replace(request_, tune_stock=True), lambda text: None)
    left = json.loads((request_.output / "comparison.json").read_text())
    assert [len(side["starts"]) for side in left["sides"].values()] == [0, 0, 0]
    first, second = left["sides"]["stock_tuned"]["notes"]
    assert first.startswith("--kv-cache-memory-bytes")
    assert first.endswith("start 1: refused")
    assert second.endswith("start 1: works with 7 KV tokens")


def test_a_search_that_found_nothing_is_a_side_without_starts_that_is_not_started(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparing(monkeypatch, [REFUSED, SERVED])
    doubtful = tuned((), ("the client failed",))
    monkeypatch.setattr(run_module, "tune_stock", lambda *_: doubtful)
    request = dataclasses.replace(request_, tune_stock=True)
    sides = run_module.compare(request, lambda text: None).sides
    assert list(sides) == ["stock", "stock_tuned", "ullage"]
    assert sides["stock_tuned"].starts == ()
    assert sides["stock_tuned"].notes == ("the client failed",)


def test_an_unknown_kind_of_model_needs_a_concurrency(request_: Request) -> None:
    (request_.model / "config.json").write_text(json.dumps({**LLAMA, "model_type": "other"}))
    with pytest.raises(Usage, match="--concurrency 32"):
        prepare_trial(request_)
    trial, _ = prepare_trial(dataclasses.replace(request_, concurrency=5))
    assert trial.load.concurrency == 5


def test_a_request_longer_than_the_longest_sequence_is_refused(request_: Request) -> None:
    with pytest.raises(Usage, match="2112 tokens is longer than --max-model-len 2048"):
        prepare_trial(dataclasses.replace(request_, input_tokens=2048))


def test_logs_go_into_a_new_or_empty_directory_only(tmp_path: Path) -> None:
    make_output(tmp_path / "new" / "logs")
    make_output(tmp_path / "new" / "logs")
    with pytest.raises(Usage, match="is not empty"):
        make_output(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(Usage, match="cannot be used for logs"):
        make_output(tmp_path / "file")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(Usage, match=f"Port {port} cannot be used"):
            check_port(port)
    check_port(free_port())


def test_processors_with_gaps_are_listed() -> None:
    assert cpu_list({0, 1, 2}) == "0-2"
    assert cpu_list({0, 2}) == "0,2"
    assert cpu_list({3}) == "3-3"


def test_without_a_group_the_program_runs_as_it_is() -> None:
    plain = Container(group=None, mount_point="", where="nowhere")
    assert plain.command(["true", "x"]) == ["true", "x"]


def test_an_eager_and_a_compiled_run_differ_in_one_flag() -> None:
    eager = ServerSettings(
        model=Path("m"),
        dtype="float32",
        compiled=False,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=8,
        cpus="0-1",
        port=1,
        extra=(),
    )
    compiled = dataclasses.replace(eager, compiled=True)
    assert set(eager.flags()) - set(compiled.flags()) == {"--enforce-eager"}

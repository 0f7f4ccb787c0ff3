"""What is checked before any engine is started, and what the sides share."""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
from pathlib import Path

import pytest

from ullage.compare import run as run_module
from ullage.compare.checkpoint import kv_token_bytes, read_checkpoint
from ullage.compare.container import Container
from ullage.compare.load import Load, read_result
from ullage.compare.run import Request, cpu_list, make_output, prepare_trial
from ullage.compare.server import ServerSettings, check_port, environment, free_port, server_command
from ullage.compare.starts import STOCK, ULLAGE
from ullage.errors import DoesNotFit, UllageError, UnknownModel, Usage
from ullage.units import GIB

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 20,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a config and a gigabyte of weights that take no room on the disk."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(LLAMA))
    write_weights(directory / "model.safetensors", "BF16", GIB // 2, GIB)
    return directory


def write_weights(path: Path, dtype: str, elements: int, size_bytes: int) -> None:
    """A safetensors file of one tensor, whose data take no room on the disk."""
    tensor = {"dtype": dtype, "shape": [elements], "data_offsets": [0, size_bytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size_bytes)


@pytest.fixture
def request_(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Request:
    monkeypatch.setattr(run_module, "engine_command", lambda subcommand: list(subcommand))
    return Request(
        model=model,
        model_label="model",
        memory_bytes=4 * GIB,
        unconfined=True,
        starts=1,
        files="cold",
        tune_stock=False,
        compiled=False,
        output=tmp_path / "out",
        dtype="bfloat16",
        max_model_len=2048,
        input_tokens=192,
        output_tokens=64,
        concurrency=None,
        prompts=None,
        port=None,
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
    commands = [server_command(trial.settings, side.flags) for side in (STOCK, ULLAGE)]
    assert commands[0] == commands[1]
    assert "--enforce-eager" in commands[0]
    assert commands[0][-2:] == ["--block-size", "32"]
    assert not {"--gpu-memory-utilization", "--kv-cache-memory-bytes"} & set(commands[0])


def test_a_stock_side_sees_no_variable_of_ullage(tmp_path: Path) -> None:
    mine = {"PATH": "/bin", "ULLAGE": "1", "ULLAGE_STRICT": "1"}
    (tmp_path / "stock").mkdir()
    (tmp_path / "ullage").mkdir()
    stock = environment(mine, dict(STOCK.variables), tmp_path / "stock", "0-1")
    ours = environment({"PATH": "/bin"}, dict(ULLAGE.variables), tmp_path / "ullage", "0-1")
    assert not [name for name in stock if name.startswith("ULLAGE")]
    assert ours["ULLAGE"] == "1"
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


def test_a_directory_without_a_model_is_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(UnknownModel, match=r"no config\.json"):
        read_checkpoint(tmp_path, "bfloat16")
    with pytest.raises(UnknownModel, match="not a directory"):
        read_checkpoint(tmp_path / "absent", "bfloat16")
    (model / "model.safetensors").unlink()
    with pytest.raises(UnknownModel, match=r"no \*\.safetensors"):
        read_checkpoint(model, "bfloat16")
    (model / "config.json").write_text("{")
    with pytest.raises(UnknownModel, match="not JSON"):
        read_checkpoint(model, "bfloat16")


@pytest.mark.parametrize("text", ["[]", '"llama"', "3"])
def test_a_config_that_is_no_object_is_an_unknown_model(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    with pytest.raises(UnknownModel, match="no JSON object"):
        read_checkpoint(model, "bfloat16")


def test_a_directory_that_cannot_be_read_is_an_unknown_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(UnknownModel, match="cannot be read: Permission denied"):
        read_checkpoint(model, "bfloat16")


def test_a_hubs_name_is_told_from_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel, match="hf download org/model --local-dir model"):
        read_checkpoint(Path("org/model"), "bfloat16")


@pytest.mark.parametrize(
    ("stored", "dtype", "size"),
    [("BF16", "float32", 4), ("F32", "bfloat16", 2), ("BF16", "bfloat16", 2), ("I8", "float32", 1)],
)
def test_weights_take_what_the_chosen_type_takes(
    model: Path, stored: str, dtype: str, size: int
) -> None:
    file_bytes = {"BF16": 2, "F32": 4, "I8": 1}[stored] * 1000
    write_weights(model / "model.safetensors", stored, 1000, file_bytes)
    assert read_checkpoint(model, dtype).weights_bytes == 1000 * size


def test_only_the_files_of_the_index_are_loaded(model: Path) -> None:
    write_weights(model / "consolidated.safetensors", "BF16", GIB, 2 * GIB)
    index = {"weight_map": {"w": "model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_checkpoint(model, "bfloat16").weights_bytes == GIB


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]"])
def test_a_file_without_a_whole_header_is_an_unknown_model(model: Path, data: bytes) -> None:
    (model / "model.safetensors").write_bytes(data)
    with pytest.raises(UnknownModel, match="no whole safetensors file"):
        read_checkpoint(model, "bfloat16")


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


def test_unknown_layers_have_no_size() -> None:
    assert kv_token_bytes(LLAMA, 2) == 81_920
    assert kv_token_bytes({**LLAMA, "model_type": "mamba"}, 2) is None
    assert kv_token_bytes({"model_type": "llama", "num_hidden_layers": 20}, 2) is None
    assert kv_token_bytes({**LLAMA, "model_type": "gemma3_text"}, 2) is None


OLD = {"num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8}


def test_heads_that_the_config_leaves_out_follow_from_the_hidden_size() -> None:
    assert kv_token_bytes({"model_type": "llama", **OLD}, 2) == 2 * 4 * 8 * 128 * 2
    grouped = {"model_type": "mistral", **OLD, "num_key_value_heads": 2, "head_dim": None}
    assert kv_token_bytes(grouped, 2) == 2 * 4 * 2 * 128 * 2


def test_what_a_family_assumes_itself_is_unknown() -> None:
    assert kv_token_bytes({"model_type": "mistral", **OLD}, 2) is None  # 8 KV heads, of any number
    without_head = {"model_type": "qwen3", **OLD, "num_key_value_heads": 2}
    assert kv_token_bytes(without_head, 2) is None  # 128, whatever the hidden size
    assert kv_token_bytes({**without_head, "head_dim": 128}, 2) == 2 * 4 * 2 * 128 * 2


def test_windows_are_no_full_attention_unless_they_are_not_used() -> None:
    model = {"model_type": "qwen2", **OLD, "num_key_value_heads": 2}
    window = {**model, "sliding_window": 4096}
    assert kv_token_bytes(window, 2) is None
    assert kv_token_bytes({**window, "use_sliding_window": False}, 2) == 4096
    kinds = ["full_attention", "sliding_attention"]
    assert kv_token_bytes({**model, "layer_types": kinds}, 2) is None


def test_processors_with_gaps_are_listed() -> None:
    assert cpu_list({0, 1, 2}) == "0-2"
    assert cpu_list({0, 2}) == "0,2"
    assert cpu_list({3}) == "3-3"


def test_without_a_group_the_program_runs_as_it_is() -> None:
    plain = Container(group=None, mount_point="", where="nowhere")
    assert plain.command(["true", "x"]) == ["true", "x"]


def test_a_client_without_a_result_has_failed_every_request(tmp_path: Path) -> None:
    lost = read_result(tmp_path / "absent.json", 62)
    assert (lost.completed, lost.failed, lost.output_tok_s) == (0, 62, None)


def test_a_clients_result_is_read_by_its_own_names(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    measured = {"output_throughput": 51.4, "median_ttft_ms": 31e3, "median_tpot_ms": 324.5}
    file.write_text(json.dumps({**measured, "completed": 60, "failed": 0}))
    result = read_result(file, 62)
    assert (result.completed, result.failed, result.output_tok_s) == (60, 2, 51.4)
    file.write_text(json.dumps({**measured, "completed": 0, "failed": 62}))
    assert read_result(file, 62).ttft_ms_median is None


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


def test_a_sequence_is_prompt_and_answer() -> None:
    load = Load(input_tokens=192, output_tokens=64, concurrency=1, prompts=1)
    assert load.sequence_tokens == 256

"""What a model directory says: bytes of weights, bytes of cache a token, or that it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.checkpoint import LLAMA, write_model, write_weights
from ullage.compare.checkpoint import kv_token_bytes, read_checkpoint
from ullage.errors import UnknownModel
from ullage.units import GIB


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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.mark.parametrize("text", ["[]", '"llama"', "3"])
def test_a_config_that_is_no_object_is_an_unknown_model(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    with pytest.raises(UnknownModel, match="no JSON object"):
        read_checkpoint(model, "bfloat16")


@pytest.mark.parametrize("name", [["llama"], {"name": "llama"}, 3])
def test_a_model_type_that_is_no_name_is_an_unknown_model(model: Path, name: object) -> None:
    (model / "config.json").write_text(json.dumps({**LLAMA, "model_type": name}))
    with pytest.raises(UnknownModel, match="model_type that is no name"):
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

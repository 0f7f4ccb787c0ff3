"""The least that a model's weights can take, from its headers: never more than any engine takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.checkpoint import write_hollow, write_weights
from ullage.checkpoint.least import least_bytes, may_load_other_weights
from ullage.checkpoint.safetensors import loaded_bytes
from ullage.units import MIB

LAYER = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One layer of 2 MiB in float32, in one file."""
    directory = tmp_path / "model"
    directory.mkdir()
    write_config(directory)
    write_weights(directory / "model.safetensors", "F32", MIB // 2, 2 * MIB, LAYER)
    return directory


def write_config(directory: Path, **entries: object) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, **entries}
    (directory / "config.json").write_text(json.dumps(config))


def test_a_float_takes_two_bytes_at_least_whatever_it_is_stored_in(model: Path):
    assert least_bytes(model) == MIB
    write_weights(model / "model.safetensors", "BF16", MIB // 2, MIB, LAYER)
    assert least_bytes(model) == MIB


def test_what_need_not_be_loaded_counts_nothing(model: Path):
    """A copy of the embedding, layers for speculation, a vision tower, buffers, other types."""
    names = (
        "lm_head.weight",
        "model.layers.2.mlp.up_proj.weight",
        "visual.blocks.0.attn.qkv.weight",
        "vision_tower.encoder.layers.0.mlp.fc1.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.mlp.up_proj.weight_scale",
        "mtp.layers.0.mlp.up_proj.weight",
    )
    write_hollow(model / "more.safetensors", dict.fromkeys(names, (MIB,)))
    write_weights(model / "fp8.safetensors", "F8_E4M3", MIB, MIB, "model.layers.1.x.weight")
    assert least_bytes(model) == MIB


def test_the_embedding_counts_once_also_where_two_files_hold_it(model: Path):
    for name in ("a.safetensors", "b.safetensors"):
        write_hollow(model / name, {"model.embed_tokens.weight": (MIB,)})
    assert least_bytes(model) == 3 * MIB


@given(
    sizes=st.dictionaries(st.integers(0, 9), st.integers(1, 1000), max_size=10),
    layers=st.integers(0, 9),
    stored=st.sampled_from(["BF16", "F16"]),
    type_bytes=st.sampled_from([2, 4]),
)
def test_it_is_never_more_than_an_engine_loads(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[int, int],
    layers: int,
    stored: str,
    type_bytes: int,
):
    directory = tmp_path_factory.mktemp("model")
    write_config(directory, num_hidden_layers=layers)
    shapes = {f"model.layers.{layer}.w.weight": (size,) for layer, size in sizes.items()}
    write_hollow(directory / "model.safetensors", shapes, stored)
    least = least_bytes(directory)
    assert least == 2 * sum(size for layer, size in sizes.items() if layer < layers)
    assert least <= loaded_bytes(directory / "model.safetensors", type_bytes)


def test_a_quantized_model_is_left_to_the_engine(model: Path):
    write_config(model, quantization_config={"quant_method": "gptq"})
    assert least_bytes(model) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"model_type": "llama"}'),
        ("config.json", '{"num_hidden_layers": "2"}'),
        ("model.safetensors", ""),
        ("model.safetensors", "\x08\0\0\0\0\0\0\0{}"),
        ("model.safetensors", "\x02\0\0\0\0\0\0\0[]"),
        ("model.safetensors", '\x07\0\0\0\0\0\0\0{"a":1}'),
        ("model.safetensors", "not a safetensors file at all"),
        ("model.safetensors.index.json", "{}"),
        ("model.safetensors.index.json", '{"weight_map": {"w": "absent.safetensors"}}'),
        ("model.safetensors.index.json", '{"weight_map": {"w": ["a"]}}'),
    ],
)
def test_a_damaged_model_is_not_judged(model: Path, name: str, content: str):
    (model / name).write_text(content)
    assert least_bytes(model) is None


def test_a_file_that_was_cut_off_is_not_judged(model: Path):
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(MIB)
    assert least_bytes(model) is None


def test_a_directory_without_weights_or_configuration_is_not_judged(tmp_path: Path, model: Path):
    (model / "model.safetensors").unlink()
    assert (least_bytes(model), least_bytes(tmp_path / "absent")) == (None, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--quantization", "fp8"],
        ["--quantization=fp8"],
        ["--quant", "fp8"],
        ["-q", "fp8"],
        ["-qfp8"],
        ["--load_format", "dummy"],
        ["--hf-overrides", "{}"],
        ["--hf-overrides.num_hidden_layers", "2"],
        ["--tensor-parallel-size", "2"],
        ["-tp", "2"],
        ["-tp2"],
        ["--config", "serve.yaml"],
        ["--model", "other"],
    ],
)
def test_options_that_may_change_the_weights_are_known_in_every_spelling(arguments: list[str]):
    assert may_load_other_weights(["/models/one", "--port", "8000", *arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-model-len", "2048"],
        ["--dtype", "float32", "--enforce-eager"],
        ["--served-model-name", "q", "--port=1"],
        ["-O0"],
    ],
)
def test_other_options_are_not_taken_for_them(arguments: list[str]):
    assert not may_load_other_weights(["/models/quantization", *arguments])

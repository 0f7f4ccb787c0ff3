"""The least that a model's weights can take, whatever engine loads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ullage.checkpoint.safetensors import tensors, weight_files
from ullage.errors import UnknownModel

_LEAST_ELEMENT_BYTES: Final = 2  # float16 and bfloat16: no engine computes in fewer
# Decoder layers and the embedding of a text model.  What else a checkpoint may hold (a second copy
# of the embedding, layers for speculation, a vision tower) need not be loaded.
_LOADED: Final = re.compile(r"model\.(layers\.(?P<layer>\d+)\..+|embed_tokens)\.weight")
# How vLLM's options begin after which weights take less here than their files say, or are others.
_OTHER_WEIGHTS: Final = (
    "--config",
    "--data-parallel",
    "--distributed-executor-backend",
    "--enable-expert-parallel",
    "--hf-",
    "--load-format",
    "--model",
    "--nnodes",
    "--pipeline-parallel-size",
    "--quantization",
    "--tensor-parallel-size",
    "-dp",
    "-ep",
    "-n",
    "-pp",
    "-q",
    "-tp",
)


def least_bytes(directory: Path) -> int | None:
    """Every engine takes this for the weights, or more.  None where that cannot be told: no plain
    text model in safetensors files, a quantized one, or files that are missing or damaged."""
    try:
        layers = _plain_layers(directory / "config.json")
        if layers is None:
            return None
        found: dict[str, int] = {}  # two files may hold the same tensor
        for file in weight_files(directory):
            found.update(_tensor_bytes(file, layers))
        return sum(found.values())
    except (OSError, ValueError, UnknownModel):
        return None


def may_load_other_weights(arguments: Sequence[str]) -> bool:
    """May these arguments of `vllm serve` change what the weights of its model take?

    vLLM takes "_" for "-", an option cut short, and a value of a mapping behind a dot.
    """
    options = [each.partition("=")[0].partition(".")[0].replace("_", "-") for each in arguments]
    return any(
        option.startswith("-") and _may_mean(option, name)
        for option in options
        for name in _OTHER_WEIGHTS
    )


def _may_mean(option: str, name: str) -> bool:
    if not option.startswith("--"):
        return not name.startswith("--") and option.startswith(name)  # "-tp2" is "-tp 2"
    return option.startswith(name) or name.startswith(option)


def _plain_layers(config: Path) -> int | None:
    """The number of decoder layers; None where the file does not say, or says quantized."""
    found = json.loads(config.read_text())
    if not isinstance(found, dict) or found.get("quantization_config") is not None:
        return None
    layers = found.get("num_hidden_layers")
    return layers if isinstance(layers, int) else None


def _tensor_bytes(file: Path, layers: int) -> Mapping[str, int]:
    """Of each tensor that is surely loaded.  Raises UnknownModel, or OSError where there is no such
    file."""
    held = tensors(file)
    if file.stat().st_size < sum(tensor.stored_bytes for tensor in held.values()):
        raise UnknownModel(f"{file} is cut off. Copy the model again.")
    return {
        name: min(tensor.stored_bytes, tensor.elements * _LEAST_ELEMENT_BYTES)
        for name, tensor in held.items()
        if tensor.is_converted and _is_loaded(name, layers)
    }


def _is_loaded(name: str, layers: int) -> bool:
    match = _LOADED.fullmatch(name)
    return match is not None and (match["layer"] is None or int(match["layer"]) < layers)

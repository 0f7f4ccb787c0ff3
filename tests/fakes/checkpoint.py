"""A model directory that an engine could not load: right headers, and data that are holes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ullage.units import GIB

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 20,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def write_model(directory: Path) -> Path:
    """A config and a gigabyte of weights in bfloat16 that take no room on the disk."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(LLAMA))
    write_weights(directory / "model.safetensors", "BF16", GIB // 2, GIB)
    return directory


def write_weights(path: Path, dtype: str, elements: int, size_bytes: int, name: str = "w") -> None:
    """A safetensors file of one tensor."""
    _write(path, {name: {"dtype": dtype, "shape": [elements], "data_offsets": [0, size_bytes]}})


def write_hollow(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    """A safetensors file of `shapes` with two bytes an element, all of them holes."""
    tensors: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        tensors[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    _write(path, tensors)


def _write(path: Path, tensors: Mapping[str, Any]) -> None:
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    ends = [tensor["data_offsets"][1] for tensor in tensors.values()]
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + max(ends, default=0))

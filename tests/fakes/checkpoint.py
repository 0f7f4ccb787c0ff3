"""A model directory that an engine could not load: right headers, and data that are holes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

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


def write_weights(path: Path, dtype: str, elements: int, size_bytes: int) -> None:
    """A safetensors file of one tensor."""
    tensor = {"dtype": dtype, "shape": [elements], "data_offsets": [0, size_bytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size_bytes)

"""Seeded random weights in the safetensors format, one tensor in memory at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Shapes = Mapping[str, tuple[int, ...]]
Progress = Callable[[int], None]

STANDARD_DEVIATION: Final = 0.02
ELEMENT_BYTES: Final = {"bfloat16": 2, "float32": 4}
_SAFETENSORS_DTYPE: Final = {"bfloat16": "BF16", "float32": "F32"}


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes that one tensor takes in the file and in memory."""
    return math.prod(shape) * ELEMENT_BYTES[dtype]


def write_shard(path: Path, shapes: Shapes, dtype: str, seed: int, progress: Progress) -> None:
    """Write `shapes` to `path`.  `progress` gets the bytes of each tensor as it is written.

    Format: a little-endian u64 header length, a JSON header, then the tensors in its order
    (https://huggingface.co/docs/safetensors, "Format").  Norm weights are ones.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    with path.open("wb") as shard:
        shard.write(_header(shapes, dtype))
        for name, shape in shapes.items():
            shard.write(_tensor(name, shape, dtype, generator))
            progress(tensor_bytes(shape, dtype))


def _header(shapes: Shapes, dtype: str) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + tensor_bytes(shape, dtype)
        entries[name] = {
            "dtype": _SAFETENSORS_DTYPE[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    return struct.pack("<Q", len(text)) + text


def _tensor(
    name: str, shape: tuple[int, ...], dtype: str, generator: np.random.Generator
) -> memoryview:
    import numpy as np

    if name.endswith("norm.weight"):
        values = np.ones(shape, dtype=np.float32)
    else:
        values = generator.standard_normal(shape, dtype=np.float32)
        values *= np.float32(STANDARD_DEVIATION)
    stored: npt.NDArray[np.generic] = values
    if dtype == "bfloat16":
        # bfloat16 is the upper half of a float32; truncation is close enough for random weights.
        stored = (values.view(np.uint32) >> 16).astype(np.uint16)
    return stored.reshape(-1).view(np.uint8).data

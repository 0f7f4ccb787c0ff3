"""What a safetensors file holds, from its header alone.

Format: a little-endian u64 header length, a JSON header, then the tensors in its order
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, Final

from ullage.errors import UnknownModel

_LENGTH: Final = struct.Struct("<Q")
# The format's own limit for a header.
_MOST_HEADER_BYTES: Final = 100_000_000
# What an engine converts to the type it computes in; other types are kept as they are stored.
_CONVERTED: Final = frozenset({"F64", "F32", "F16", "BF16"})


def loaded_bytes(path: Path, element_bytes: int) -> int:
    """Memory that the tensors of `path` take in a type of `element_bytes`.

    Quantized tensors count as they are stored.  Raises UnknownModel.
    """
    try:
        tensors = _header(path)
        return sum(_tensor_bytes(tensor, element_bytes) for tensor in tensors.values())
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownModel(
            f"{path} is no whole safetensors file: its header cannot be read. Copy the model again."
        ) from error


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > _MOST_HEADER_BYTES:
            raise ValueError(length)
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return dict(header)


def _tensor_bytes(tensor: dict[str, Any], element_bytes: int) -> int:
    begin, end = tensor["data_offsets"]
    if tensor["dtype"] in _CONVERTED:
        return int(math.prod(tensor["shape"])) * element_bytes
    return int(end - begin)

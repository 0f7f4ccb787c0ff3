"""What a safetensors file holds, from its header alone.

Format: a little-endian u64 header length, a JSON header, then the tensors in its order
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage.errors import UnknownModel

_LENGTH: Final = struct.Struct("<Q")
# The format's own limit for a header.
_MOST_HEADER_BYTES: Final = 100_000_000
# What an engine converts to the type it computes in; other types are kept as they are stored.
_CONVERTED: Final = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    dtype: str
    elements: int
    stored_bytes: int

    @property
    def is_converted(self) -> bool:
        """Does an engine convert it to the type that it computes in?"""
        return self.dtype in _CONVERTED

    def loaded_bytes(self, element_bytes: int) -> int:
        """Memory that it takes in a type of `element_bytes`; quantized ones as they are stored."""
        return self.elements * element_bytes if self.is_converted else self.stored_bytes


def tensors(path: Path) -> Mapping[str, Tensor]:
    """By name.  Raises UnknownModel for a file that is none, OSError for one that is refused."""
    try:
        return {name: _tensor(entry) for name, entry in _header(path).items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownModel(
            f"{path} is no whole safetensors file: its header cannot be read. Copy the model again."
        ) from error


def loaded_bytes(path: Path, element_bytes: int) -> int:
    """Memory that the tensors of `path` take in a type of `element_bytes`.  Raises as `tensors`."""
    return sum(tensor.loaded_bytes(element_bytes) for tensor in tensors(path).values())


def weight_files(path: Path) -> list[Path]:
    """The files that the index of directory `path` names; without one, all of them.

    Raises UnknownModel.
    """
    index = path / "model.safetensors.index.json"
    try:
        names = (
            set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else None
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownModel(f"{index} is no index of weights. Copy the model again.") from error
    files = [path / str(name) for name in names] if names else path.glob("*.safetensors")
    found = sorted(files)
    if not found:
        raise UnknownModel(f"{path} has no *.safetensors file. Give a model in that format.")
    return found


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > _MOST_HEADER_BYTES:
            raise ValueError(length)
        text = file.read(length)
    if len(text) < length:
        raise ValueError(length)
    header = json.loads(text)
    header.pop("__metadata__", None)
    return dict(header)


def _tensor(entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    return Tensor(
        dtype=str(entry["dtype"]),
        elements=int(math.prod(entry["shape"])),
        stored_bytes=int(end - begin),
    )

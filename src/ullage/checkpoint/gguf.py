"""What a GGUF file holds, from its header alone.

Format: magic, version, counts, metadata, then name, shape and type of every tensor
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from ullage.checkpoint.safetensors import Tensor
from ullage.errors import UnknownModel

Value = bool | int | float | str | tuple[Any, ...]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)  # version 1 had 32-bit counts, and no model hub has files of it any more
_ALIGNMENT: Final = 32  # of tensors in the file, unless "general.alignment" says otherwise
_MOST_DIMENSIONS: Final = 4
_MOST_KEPT: Final = 4096  # per-layer values are kept, vocabularies are not
_MOST_STRINGS: Final = 1 << 24
_MOST_STRING_BYTES: Final = 1 << 24  # chat templates are the longest
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    number: struct.Struct(f"<{letter}")
    for number, letter in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]


@dataclass(frozen=True, kw_only=True, slots=True)
class Type:
    """`block_elements` elements lie in `block_bytes`."""

    name: str
    block_elements: int
    block_bytes: int


# ggml/include/ggml.h and ggml/src/ggml-common.h; the numbers that are left out were withdrawn.
TYPES: Final[Mapping[int, Type]] = {
    number: Type(name=name, block_elements=elements, block_bytes=size_bytes)
    for number, name, elements, size_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gguf:
    """`metadata`: scalars, strings and short lists of numbers.  Longer ones, and lists of strings,
    are left out.  `whole_bytes`: how long a file with all its tensors is, without padding."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, Tensor]
    whole_bytes: int


def read(path: Path) -> Gguf:
    """Raises UnknownModel for a file that is none or is cut off, OSError for one that is refused.

    At most a vocabulary is walked through, whatever the file's size."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = _parse(_Cursor(data), path)
            size_bytes = len(data)
    except (struct.error, ValueError, KeyError, RecursionError) as error:
        raise UnknownModel(
            f"{path} is no whole GGUF file: its header cannot be read. Copy the model again."
        ) from error
    if size_bytes < found.whole_bytes:
        raise UnknownModel(
            f"{path} is cut off: it has {size_bytes} bytes, and its tensors end at "
            f"{found.whole_bytes}. Copy the model again."
        )
    return found


class _Cursor:
    """Reads one thing after the other.  Raises struct.error behind the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 0

    def number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self.offset)
        self.offset += form.size
        return value

    def bytes(self, length: int) -> bytes:
        if length > len(self._data) - self.offset:
            raise struct.error(length)
        self.offset += length
        return self._data[self.offset - length : self.offset]

    def string(self) -> str:
        length = self.number(_U64)
        if length > _MOST_STRING_BYTES:
            raise ValueError("string")
        return self.bytes(length).decode("utf-8", errors="replace")

    def skip(self, length: int) -> None:
        if length > len(self._data) - self.offset:
            raise struct.error(length)
        self.offset += length

    def skip_strings(self, count: int) -> None:
        if count > _MOST_STRINGS:
            raise ValueError("strings")
        data, offset, unpack = self._data, self.offset, _U64.unpack_from
        for _ in range(count):
            offset += 8 + unpack(data, offset)[0]
        self.offset = offset


def _parse(cursor: _Cursor, path: Path) -> Gguf:
    if cursor.bytes(4) != _MAGIC:
        raise ValueError("magic")
    version = cursor.number(_U32)
    if version not in _VERSIONS:
        raise UnknownModel(
            f"{path} is of GGUF version {version}, and 2 and 3 are known. Convert the model anew."
        )
    tensor_count, value_count = cursor.number(_U64), cursor.number(_U64)
    metadata: dict[str, Value] = {}
    for _ in range(value_count):
        name = cursor.string()
        value = _value(cursor, cursor.number(_U32))
        if value is not None:
            metadata[name] = value
    ends = [_tensor(cursor, path) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError("alignment")
    begin = -(-cursor.offset // alignment) * alignment
    return Gguf(
        metadata=metadata,
        tensors={name: tensor for name, tensor, _ in ends},
        whole_bytes=begin + max((end for _, _, end in ends), default=0),
    )


def _value(cursor: _Cursor, kind: int) -> Value | None:
    """None: a long list, or one of strings."""
    if kind == _STRING:
        return cursor.string()
    if kind != _ARRAY:
        value: Value = cursor.number(_SCALARS[kind])
        return value
    of, count = cursor.number(_U32), cursor.number(_U64)
    if of == _STRING:
        cursor.skip_strings(count)
        return None
    if of == _ARRAY:
        for _ in range(count):
            _value(cursor, _ARRAY)
        return None
    form = _SCALARS[of]
    if count > _MOST_KEPT:
        cursor.skip(count * form.size)
        return None
    return tuple(cursor.number(form) for _ in range(count))


def _tensor(cursor: _Cursor, path: Path) -> tuple[str, Tensor, int]:
    """Its name, what it is, and where it ends behind the header."""
    name = cursor.string()
    dimensions = cursor.number(_U32)
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError("dimensions")
    shape = tuple(cursor.number(_U64) for _ in range(dimensions))
    number, offset = cursor.number(_U32), cursor.number(_U64)
    kind = TYPES.get(number)
    if kind is None:
        raise UnknownModel(
            f"{path}: tensor {name} is of ggml type {number}, which is not known. Give the model "
            "in another quantization."
        )
    elements = prod(shape)
    if (shape[0] if shape else 1) % kind.block_elements:
        raise ValueError("rows")
    stored_bytes = elements // kind.block_elements * kind.block_bytes
    tensor = Tensor(dtype=kind.name, elements=elements, stored_bytes=stored_bytes)
    return name, tensor, offset + stored_bytes

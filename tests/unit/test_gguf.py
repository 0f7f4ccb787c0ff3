"""GGUF headers: what is read, and what is refused.  The files are made here, byte by byte."""

from __future__ import annotations

import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.checkpoint import gguf
from ullage.errors import UnknownModel

ALIGNMENT = 32


def string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def u32(name: str, value: int) -> bytes:
    return string(name) + struct.pack("<II", 4, value)


def text(name: str, value: str) -> bytes:
    return string(name) + struct.pack("<I", 8) + string(value)


def numbers(name: str, values: list[int]) -> bytes:
    head = struct.pack("<IIQ", 9, 5, len(values))
    return string(name) + head + struct.pack(f"<{len(values)}i", *values)


def words(name: str, values: list[str]) -> bytes:
    return string(name) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(string, values))


def whole(
    values: list[bytes], tensors: list[tuple[str, tuple[int, ...], int]], *, version: int = 3
) -> bytes:
    """A file with these, and zeros for their data."""
    infos, offset = [], 0
    for name, shape, number in tensors:
        infos.append(
            string(name)
            + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
            + struct.pack("<IQ", number, offset)
        )
        offset += -(-size_bytes(shape, number) // ALIGNMENT) * ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    header = head + b"".join(values) + b"".join(infos)
    return header + bytes(-len(header) % ALIGNMENT) + bytes(offset)


def size_bytes(shape: tuple[int, ...], number: int) -> int:
    elements = 1
    for size in shape:
        elements *= size
    kind = gguf.TYPES[number]
    return elements // kind.block_elements * kind.block_bytes


def read(content: bytes) -> gguf.Gguf:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(content)
        file.flush()
        return gguf.read(Path(file.name))


def test_values_and_tensors_are_read_and_vocabularies_are_not_kept():
    found = read(
        whole(
            [
                text("general.architecture", "llama"),
                u32("llama.block_count", 2),
                words("tokenizer.ggml.tokens", ["a", "", "ä"]),
                numbers("llama.attention.head_count_kv", [8, 4]),
            ],
            [("token_embd.weight", (256, 10), 12), ("output_norm.weight", (256,), 0)],
        )
    )
    assert found.metadata == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.attention.head_count_kv": (8, 4),
    }
    sizes = {name: (each.dtype, each.stored_bytes) for name, each in found.tensors.items()}
    assert sizes == {
        "token_embd.weight": ("Q4_K", 10 * 144),
        "output_norm.weight": ("F32", 1024),
    }


@st.composite
def tensors(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...], int]]:
    def one(name: int) -> tuple[str, tuple[int, ...], int]:
        number = draw(st.sampled_from(sorted(gguf.TYPES)))
        rows = draw(st.lists(st.integers(1, 3), max_size=3))
        blocks = draw(st.integers(1, 3))
        return f"t{name}", (blocks * gguf.TYPES[number].block_elements, *rows), number

    return [one(name) for name in range(draw(st.integers(0, 4)))]


@given(tensors())
def test_sizes_are_those_of_the_file_to_the_byte(wanted):
    content = whole([u32("general.alignment", ALIGNMENT)], wanted)
    found = read(content)
    stored = [each.stored_bytes for each in found.tensors.values()]
    assert stored == [size_bytes(shape, number) for _, shape, number in wanted]
    assert len(content) - ALIGNMENT < found.whole_bytes <= len(content)


@settings(deadline=None, max_examples=40)
@given(tensors(), st.data())
def test_a_file_that_is_cut_off_anywhere_is_refused(wanted, data):
    values = [text("general.name", "x"), words("w", ["a", "b"]), numbers("n", [1, 2, 3])]
    content = whole(values, wanted)
    needed = read(content).whole_bytes if wanted else len(content) - ALIGNMENT
    kept = data.draw(st.integers(0, max(0, needed - 1)))
    with pytest.raises(UnknownModel, match=r"Copy the model again\."):
        read(content[:kept])


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 60), st.binary(max_size=8))
def test_whatever_the_bytes_are_nothing_but_its_own_error_comes_of_them(noise, where, other):
    good = whole([u32("a", 1), numbers("n", [1, 2])], [("t", (32, 2), 2)])
    damaged = good[:where] + other + good[where + len(other) :]
    for content in (noise, b"GGUF" + noise, damaged):
        with suppress(UnknownModel):
            assert read(content).whole_bytes <= len(content)


def test_a_type_that_is_not_known_is_named_and_never_guessed():
    content = whole([], [("blk.0.ffn_up.weight", (32,), 2)])
    damaged = content.replace(struct.pack("<IQ", 2, 0), struct.pack("<IQ", 99, 0))
    with pytest.raises(UnknownModel, match=r"blk\.0\.ffn_up\.weight is of ggml type 99"):
        read(damaged)


def test_other_versions_are_named():
    with pytest.raises(UnknownModel, match="of GGUF version 1, and 2 and 3 are known"):
        read(whole([], [], version=1))


def test_a_row_that_is_no_whole_number_of_blocks_is_refused():
    with pytest.raises(UnknownModel, match="no whole GGUF file"):
        read(whole([], [("t", (33,), 2)]))

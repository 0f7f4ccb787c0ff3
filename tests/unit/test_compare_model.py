"""The demo model: its size, its bytes, and that it is whole or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import struct
from pathlib import Path

import pytest

from ullage.compare import model as model_module
from ullage.compare.checkpoint import kv_token_bytes, read_checkpoint
from ullage.compare.model import MAX_POSITIONS, Shape, cached_model, demo_shape
from ullage.errors import Unreadable
from ullage.units import GIB, MIB

pytest.importorskip("numpy", reason="needs numpy, which an engine brings")
tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers, which an engine brings")

TINY = Shape(
    dtype="bfloat16",
    layers=3,
    hidden=32,
    intermediate=64,
    heads=2,
    kv_heads=1,
    head_dim=16,
    vocabulary=400,
)


def digests(directory: Path) -> dict[str, str]:
    files = sorted(directory.iterdir())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def header(shard: Path) -> tuple[dict[str, dict[str, object]], int]:
    data = shard.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), len(data) - 8 - length


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return cached_model(TINY, lambda count: None, cache=tmp_path / "cache")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_demo_has_about_0_9_gib_and_80_kib_of_cache_a_token_in_either_type(dtype: str) -> None:
    shape = demo_shape(dtype, small=False)
    assert 0.88 * GIB < shape.weights_bytes < 0.93 * GIB
    assert kv_token_bytes(shape.config(), 2 if dtype == "bfloat16" else 4) == 80 * 1024
    assert shape.vocabulary <= 32_768
    assert shape.config()["max_position_embeddings"] == MAX_POSITIONS == 2048


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_small_one_has_some_tens_of_mib(dtype: str) -> None:
    assert 20 * MIB < demo_shape(dtype, small=True).weights_bytes < 80 * MIB


def test_the_same_shape_gives_the_same_bytes(tmp_path: Path) -> None:
    first = cached_model(TINY, lambda count: None, cache=tmp_path / "a")
    second = cached_model(TINY, lambda count: None, cache=tmp_path / "b")
    assert first.name == second.name
    assert digests(first) == digests(second)


def test_a_shard_is_a_valid_safetensors_file_with_every_tensor_once(tiny: Path) -> None:
    names: list[str] = []
    for shard in sorted(tiny.glob("*.safetensors")):
        entries, data_bytes = header(shard)
        entries.pop("__metadata__")
        offsets = [entry["data_offsets"] for entry in entries.values()]
        assert [begin for begin, _ in offsets] == [0, *(end for _, end in offsets[:-1])]  # type: ignore[misc]
        assert offsets[-1][1] == data_bytes  # type: ignore[index]
        names += entries
    index = json.loads((tiny / "model.safetensors.index.json").read_text())
    assert sorted(names) == sorted(index["weight_map"])
    assert len(names) == 3 + 9 * TINY.layers


def test_progress_adds_up_to_the_weights(tmp_path: Path) -> None:
    counts: list[int] = []
    cached_model(TINY, counts.append, cache=tmp_path)
    assert sum(counts) == TINY.weights_bytes


def test_a_model_in_the_cache_is_not_made_again(tiny: Path) -> None:
    counts: list[int] = []
    assert cached_model(TINY, counts.append, cache=tiny.parent) == tiny
    assert counts == []


def test_an_interrupted_model_is_not_there_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model_module, "write_tokenizer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached_model(TINY, lambda count: None, cache=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_files_can_be_read_by_others_and_written_by_the_owner_alone(tiny: Path) -> None:
    assert tiny.stat().st_mode & 0o777 == 0o755
    assert all(file.stat().st_mode & 0o022 == 0 for file in tiny.iterdir())


def test_the_tokenizer_gives_back_any_text(tiny: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))
    text = "bada gizo, \u00fcber 42\n\tmixed Text"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == TINY.vocabulary


def test_the_checkpoint_reader_finds_what_the_maker_wrote(tiny: Path) -> None:
    found = read_checkpoint(tiny, "bfloat16")
    assert found.weights_bytes == TINY.weights_bytes
    assert read_checkpoint(tiny, "float32").weights_bytes == 2 * TINY.weights_bytes
    assert found.kv_token_bytes == 2 * 3 * 1 * 16 * 2


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(Unreadable, match=f"cannot be kept in {place}.*XDG_CACHE_HOME"):
            cached_model(TINY, lambda count: None, cache=place)


def test_a_full_disk_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ullage.compare.model.write_shard", full)
    with pytest.raises(OSError, match="No space left") as fault:
        cached_model(TINY, lambda count: None, cache=tmp_path)
    assert fault.value.errno == errno.ENOSPC
    assert not list(tmp_path.glob(".making-*"))

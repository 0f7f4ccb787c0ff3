"""The demo model: a seeded random Llama, made on the spot, kept in the user's cache.

Its shape makes a load short and a cache full: about 0.9 GiB of weights, and 80 KiB of KV cache a
token in either type, so that a gigabyte of cache holds about 13,000 tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import filelock
import platformdirs

from ullage.compare.tokenizer import write_tokenizer
from ullage.compare.weights import Progress, Shapes, tensor_bytes, write_shard
from ullage.errors import FULL, Unreadable

SEED: Final = 20_260_101
MAX_POSITIONS: Final = 2048
_FORMAT: Final = 1  # part of the name in the cache: raise it when the files change


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A Llama's sizes.  Counts, except `dtype`."""

    dtype: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def weights_bytes(self) -> int:
        shards = self.shards()
        return sum(tensor_bytes(s, self.dtype) for shard in shards for s in shard.values())

    def shards(self) -> list[Shapes]:
        """Tensors by file: the embedding with the head, then each quarter of the layers."""
        outer: Shapes = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "lm_head.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        step = -(-self.layers // 4)
        return [outer, *(self._layers(n, n + step) for n in range(0, self.layers, step))]

    def _layers(self, first: int, end: int) -> Shapes:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(first, min(end, self.layers)):
            for name, shape in self._layer().items():
                shapes[f"model.layers.{layer}.{name}.weight"] = shape
        return shapes

    def _layer(self) -> Shapes:
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "input_layernorm": (self.hidden,),
            "self_attn.q_proj": (query, self.hidden),
            "self_attn.k_proj": (key, self.hidden),
            "self_attn.v_proj": (key, self.hidden),
            "self_attn.o_proj": (self.hidden, query),
            "post_attention_layernorm": (self.hidden,),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }

    def config(self) -> dict[str, object]:
        """The model's config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": self.dtype,
            "torch_dtype": self.dtype,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": MAX_POSITIONS,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }


def demo_shape(dtype: str, *, small: bool) -> Shape:
    """The demo's shape for `dtype`, or one of some tens of MiB for a quick look."""
    wide = dtype == "bfloat16"  # half the bytes an element: twice the elements
    if small:
        return Shape(
            dtype=dtype,
            layers=4,
            hidden=512,
            intermediate=2048 if wide else 1024,
            heads=4,
            kv_heads=4 if wide else 2,
            head_dim=128,
            vocabulary=8192,
        )
    return Shape(
        dtype=dtype,
        layers=20,
        hidden=1024,
        intermediate=6016 if wide else 2304,
        heads=8,
        kv_heads=8 if wide else 4,
        head_dim=128,
        vocabulary=16_384,
    )


def cached_model(shape: Shape, progress: Progress, *, cache: Path | None = None) -> Path:
    """The directory of the model, made when it is not in the cache yet.

    `progress` gets the bytes written, tensor by tensor.  The directory appears whole or not at all.
    Raises Unreadable where the cache is not this user's to write, OSError where it is full.
    """
    root = cache or Path(platformdirs.user_cache_dir("ullage")) / "models"
    try:
        return _cached_below(root, shape, progress)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise Unreadable(
            f"The demo model cannot be kept in {root}: {error.strerror}. "
            "Set XDG_CACHE_HOME to a directory that this user may write."
        ) from error


def _cached_below(root: Path, shape: Shape, progress: Progress) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"llama-{shape.dtype}-{_digest(shape)}"
    with filelock.FileLock(root / f".{target.name}.lock"):
        if not target.is_dir():
            _make(target, shape, progress)
    return target


def _make(target: Path, shape: Shape, progress: Progress) -> None:
    with _scratch(target.parent) as scratch:
        _write(scratch, shape, progress)
        scratch.chmod(0o755)
        scratch.rename(target)


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A directory beside the target, gone afterwards unless it was renamed."""
    scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(directory: Path, shape: Shape, progress: Progress) -> None:
    shards = shape.shards()
    weight_map: dict[str, str] = {}
    for number, shapes in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_shard(directory / name, shapes, shape.dtype, SEED + number, progress)
        weight_map |= dict.fromkeys(shapes, name)
    index = {"metadata": {"total_size": shape.weights_bytes}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index)
    _write_json(directory / "config.json", shape.config())
    write_tokenizer(directory, shape.vocabulary, SEED)


def _write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")


def _digest(shape: Shape) -> str:
    settings = {"format": _FORMAT, "seed": SEED, **dataclasses.asdict(shape)}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

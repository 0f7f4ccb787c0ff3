"""What a model directory says before an engine has read it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.checkpoint.safetensors import loaded_bytes, weight_files
from ullage.errors import DoesNotFit, UnknownModel
from ullage.units import MIB, align_up, gib

DTYPE_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}

# What a CPU engine's processes take besides weights and KV cache, measured with vLLM 0.32 at 2,048
# batched tokens: three Python processes with torch at 0.40 to 0.45 GiB of anonymous memory each,
# second copies of embedding and head, a prefill's peak, and what has to stay free.
ENGINE_BYTES: Final = 1_850 * MIB
# Families whose layers all have plain attention, unless the file speaks of a window.  Gemma's, for
# one, have windows without saying so in every file.
FULL_ATTENTION: Final = frozenset(
    {"granite", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen2_moe"}
    | {"qwen3", "qwen3_moe"}
)
# What transformers assumes where config.json leaves a number out differs by family: these take the
# number of heads for the number of KV heads (the others have a constant, such as Mistral's 8) ...
ONE_KV_HEAD_A_HEAD: Final = frozenset({"granite", "llama", "olmo2", "phi3"})
# ... and these a constant for the size of a head; the others divide the hidden size by the heads.
OWN_HEAD_DIM: Final = frozenset({"qwen3", "qwen3_moe"})
HUB_NAME_PARTS: Final = 2  # organisation and model
# Concurrent tokens of the load, as a share of the pool.
POOL_SHARE: Final = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A model directory.  `kv_token_bytes` is None where the layers are not plain attention.

    `weights_bytes`: in the type that is computed in, whatever type the files have.
    """

    path: Path
    weights_bytes: int
    kv_token_bytes: int | None

    def check_fits(self, limit_bytes: int) -> None:
        """Raise DoesNotFit where the weights alone are larger than the limit."""
        check_fits(f"in {self.path}", self.weights_bytes, limit_bytes)

    def pool_tokens(self, limit_bytes: int) -> int | None:
        """An estimate of the KV tokens that fit beside weights and processes; None if unknown."""
        if self.kv_token_bytes is None:
            return None
        left = limit_bytes - self.weights_bytes - ENGINE_BYTES
        return max(0, left) // self.kv_token_bytes

    def concurrency(self, limit_bytes: int, sequence_tokens: int) -> int | None:
        """Sequences that fill `POOL_SHARE` of the estimated pool, at least 1; None if unknown."""
        pool = self.pool_tokens(limit_bytes)
        return None if pool is None else max(1, int(pool * POOL_SHARE) // sequence_tokens)


def check_fits(which: str, weights_bytes: int, limit_bytes: int) -> None:
    """Raise DoesNotFit where the weights `which` are larger than the limit."""
    if weights_bytes < limit_bytes:
        return
    needed = align_up(weights_bytes + ENGINE_BYTES, 1 << 29)
    raise DoesNotFit(
        f"The weights {which} take {gib(weights_bytes)}, more than the limit of "
        f"{gib(limit_bytes)}. Try --memory {needed / (1 << 30):g}GiB or more."
    )


def read_checkpoint(path: Path, dtype: str) -> Checkpoint:
    """Read config.json and the headers of the weight files, for an engine that computes in `dtype`.

    Raises UnknownModel.
    """
    try:
        config = _config(path)
        element_bytes = DTYPE_BYTES[dtype]
        weights = sum(loaded_bytes(file, element_bytes) for file in weight_files(path))
    except OSError as error:
        raise UnknownModel(
            f"{path} cannot be read: {error.strerror}. Make the model readable for this user."
        ) from error
    token_bytes = kv_token_bytes(config, element_bytes)
    return Checkpoint(path=path.resolve(), weights_bytes=weights, kv_token_bytes=token_bytes)


def _config(path: Path) -> Mapping[str, object]:
    if not path.is_dir():
        raise UnknownModel(_no_directory(path))
    file = path / "config.json"
    if not file.is_file():
        raise UnknownModel(
            f"{path} holds no model: it has no config.json. Give the directory of a model."
        )
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise UnknownModel(f"{file} is not JSON: {error}. Copy the model again.") from error
    if not isinstance(config, dict):
        raise UnknownModel(f"{file} is no JSON object. Give the directory of a model.")
    if not isinstance(config.get("model_type", ""), str):
        raise UnknownModel(f"{file} has a model_type that is no name. Copy the model again.")
    return config


def _no_directory(path: Path) -> str:
    if path.exists() or path.is_absolute() or len(path.parts) != HUB_NAME_PARTS:
        return f"{path} is not a directory. Give the directory of a model."
    return (
        f"{path} is not a directory, and no hub is asked. Fetch the model first: "
        f"hf download {path} --local-dir {path.name}."
    )


def kv_token_bytes(config: Mapping[str, object], element_bytes: int) -> int | None:
    """Bytes that one token takes in the KV cache of full attention; None for anything else.

    20 layers with 8 KV heads of 128 in bfloat16: 2 * 20 * 8 * 128 * 2 = 81,920.
    """
    if config.get("model_type") not in FULL_ATTENTION or _slides(config):
        return None
    counts = (_count(config, "num_hidden_layers"), _kv_heads(config), _head_dim(config))
    known = [count for count in counts if count is not None]
    return 2 * math.prod(known) * element_bytes if len(known) == len(counts) else None


def _slides(config: Mapping[str, object]) -> bool:
    """Is any layer's attention limited to a window?"""
    kinds = config.get("layer_types") or ()
    if not isinstance(kinds, list | tuple) or any(kind != "full_attention" for kind in kinds):
        return True
    # Qwen writes the size of a window that it then does not use.
    return bool(config.get("sliding_window")) and config.get("use_sliding_window") is not False


def _kv_heads(config: Mapping[str, object]) -> int | None:
    """Where the file leaves them out, as many as there are heads, in the families that say so."""
    heads = _count(config, "num_key_value_heads")
    if heads is None and config["model_type"] in ONE_KV_HEAD_A_HEAD:
        return _count(config, "num_attention_heads")
    return heads


def _head_dim(config: Mapping[str, object]) -> int | None:
    dim, heads = _count(config, "head_dim"), _count(config, "num_attention_heads")
    hidden = _count(config, "hidden_size")
    if dim is None and heads and hidden and config["model_type"] not in OWN_HEAD_DIM:
        return hidden // heads
    return dim


def _count(config: Mapping[str, object], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else None

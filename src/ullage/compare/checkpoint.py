"""What a model directory says before an engine has read it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.errors import DoesNotFit, UnknownModel
from ullage.units import MIB, align_up, gib

DTYPE_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}

# What a CPU engine's processes take besides weights and KV cache, measured with vLLM 0.32 at 2,048
# batched tokens: three Python processes with torch at 0.40 to 0.45 GiB of anonymous memory each,
# second copies of embedding and head, a prefill's peak, and what has to stay free.
ENGINE_BYTES: Final = 1_850 * MIB
# Concurrent tokens of the load, as a share of the pool.
POOL_SHARE: Final = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A model directory.  `kv_token_bytes` is None where the layers are not plain attention."""

    path: Path
    weights_bytes: int
    kv_token_bytes: int | None

    def check_fits(self, limit_bytes: int) -> None:
        """Raise DoesNotFit where the weights alone are larger than the limit."""
        if self.weights_bytes >= limit_bytes:
            needed = align_up(self.weights_bytes + ENGINE_BYTES, 1 << 29)
            raise DoesNotFit(
                f"The weights in {self.path} take {gib(self.weights_bytes)}, more than the limit "
                f"of {gib(limit_bytes)}. Try --memory {needed / (1 << 30):g}GiB or more."
            )

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


def read_checkpoint(path: Path, dtype: str) -> Checkpoint:
    """Read config.json and the sizes of the weight files.  Raises UnknownModel."""
    if not path.is_dir():
        raise UnknownModel(f"{path} is not a directory. Give the directory of a model.")
    if not (path / "config.json").is_file():
        raise UnknownModel(
            f"{path} holds no model: it has no config.json. Give the directory of a model."
        )
    weights = [file.stat().st_size for file in sorted(path.glob("*.safetensors"))]
    if not weights:
        raise UnknownModel(f"{path} has no *.safetensors file. Give a model in that format.")
    try:
        config = json.loads((path / "config.json").read_text())
    except ValueError as error:
        raise UnknownModel(f"{path / 'config.json'} is not JSON: {error}.") from error
    token_bytes = kv_token_bytes(config, DTYPE_BYTES[dtype])
    return Checkpoint(path=path.resolve(), weights_bytes=sum(weights), kv_token_bytes=token_bytes)


def kv_token_bytes(config: Mapping[str, object], element_bytes: int) -> int | None:
    """Bytes that one token takes in the KV cache of a plain Llama; None for anything else.

    20 layers with 8 KV heads of 128 in bfloat16: 2 * 20 * 8 * 128 * 2 = 81,920.
    """
    if config.get("model_type") != "llama":
        return None
    names = ("num_hidden_layers", "num_key_value_heads", "head_dim")
    counts = [value for name in names if isinstance(value := config.get(name), int)]
    return 2 * math.prod(counts) * element_bytes if len(counts) == len(names) else None

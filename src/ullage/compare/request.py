"""What a user asks a comparison for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.compare.files import FileState
from ullage.compare.model import MAX_POSITIONS, Shape

INPUT_TOKENS: Final = 192
OUTPUT_TOKENS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is to be compared.  None: chosen from model, limit and processor."""

    model: Path
    model_label: str
    memory_bytes: int
    output: Path
    unconfined: bool = False
    starts: int = 1
    files: FileState = "cold"
    tune_stock: bool = False
    compiled: bool = False
    dtype: str | None = None
    max_model_len: int = MAX_POSITIONS
    input_tokens: int = INPUT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    concurrency: int | None = None
    prompts: int | None = None
    port: int | None = None
    extra: tuple[str, ...] = ()


# The quick look does not fill a cache of several hundred thousand tokens.
SMALL_CONCURRENCY: Final = 64


def demo_request(
    shape: Shape, model: Path, *, small: bool, memory_bytes: int, output: Path
) -> Request:
    """The demo model, of `shape` and at `model`, with its load."""
    return Request(
        model=model,
        model_label="small demo model" if small else "demo model",
        memory_bytes=memory_bytes,
        output=output,
        dtype=shape.dtype,
        concurrency=SMALL_CONCURRENCY if small else None,
    )

"""Flags of the engine that a comparison passes on: which it cannot, and what it does not repeat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ullage.errors import Usage

_MEMORY: Final = "is what is compared, so each side has its own; see --tune-stock"
_ADDRESS: Final = "is set for each start; leave it out"
_PORT: Final = "is set for each start; give --port to ullage compare itself"
_LOAD: Final = "follows from the load; set --concurrency instead"
_MODEL: Final = "is the argument MODEL; leave it out"
_CLIENT: Final = "is what the client asks for; leave it out"

# Why a flag is not passed on, and what takes its place.
REFUSED: Final = {
    "--gpu-memory-utilization": _MEMORY,
    "--kv-cache-memory-bytes": _MEMORY,
    "--num-gpu-blocks-override": _MEMORY,
    "--kv-cache-dtype": "changes how many bytes a token takes; leave it out",
    "--swap-space": _MEMORY,
    "--cpu-offload-gb": _MEMORY,
    "--dtype": "has an option of ullage compare; put --dtype before --",
    "--max-model-len": "has an option of ullage compare; put --max-model-len before --",
    "--max-num-seqs": _LOAD,
    "--max-num-batched-tokens": _LOAD,
    "--enforce-eager": "is the default; leave it out, or put --compile before --",
    "--no-enforce-eager": "has an option of ullage compare; put --compile before --",
    "--port": _PORT,
    "--host": _ADDRESS,
    "--uds": _ADDRESS,
    "--root-path": _ADDRESS,
    "--served-model-name": _CLIENT,
    "--model": _MODEL,
    "--tokenizer": _MODEL,
    "--config": "can set all the others; write its flags out",
}

_SECRET: Final = re.compile(r"--(.*-)?(api-key|hf-token|auth-token|password|passphrase|secret)$")
HIDDEN: Final = "***"


def check_extra(extra: Sequence[str]) -> None:
    """Raise Usage for a flag that a comparison sets or measures itself."""
    for word in extra:
        for flag, reason in REFUSED.items():
            if _means(_name(word), flag):
                fact, _, way_out = reason.partition("; ")
                raise Usage(f"The flag {flag} {fact}. {way_out[0].upper()}{way_out[1:]}.")


def redacted(extra: Sequence[str]) -> tuple[str, ...]:
    """`extra` with the values of keys, tokens and passwords hidden."""
    return tuple(_redacted(extra))


def _redacted(extra: Sequence[str]) -> Iterator[str]:
    secret = False
    for word in extra:
        if not word.startswith("-"):
            yield HIDDEN if secret else word
            continue
        secret = _SECRET.match(_name(word)) is not None
        flag, equals, _ = word.partition("=")
        yield f"{flag}={HIDDEN}" if secret and equals else word


def _name(word: str) -> str:
    """vLLM takes `--max_num_seqs=8` for `--max-num-seqs 8`."""
    return word.partition("=")[0].replace("_", "-")


def _means(name: str, flag: str) -> bool:
    """argparse takes a flag's beginning for the flag."""
    return name.startswith("--") and len(name) > len("--") and flag.startswith(name)

"""What an engine's processes take after its KV cache has its size.  Pure."""

from __future__ import annotations

from ullage.units import MIB
from ullage.vllm_plugin.versions import EngineRules

# A worker's heap grows by some 20 MiB under load.  The margin has room for one worker's
# (`budget.default_margin_bytes`).
_HEAP_BYTES = 24 * MIB
# Measured with the heap as it is: 37 to 84 MiB more under load, and 2 to 3 MiB where it is kept in
# one piece (`drivers/steady_heap`).
_SPREAD_BYTES = 64 * MIB


def later_bytes(
    rules: EngineRules,
    *,
    vocabulary: int,
    max_num_seqs: int,
    grammar_cache_bytes: int,
    ranks: int,
    spreading_heaps: int,
) -> int:
    """Bytes that are still to come, all of them at their most.

    `grammar_cache_bytes`: what the engine core may keep of compiled grammars.  `spreading_heaps`:
    of so many ranks the heap keeps what steps free in pieces.
    """
    # The first request with `allowed_token_ids` makes two masks of one byte a token, for all
    # requests at once, in each rank (v1/worker/gpu_input_batch.py).
    mask_bytes = 2 * max_num_seqs * vocabulary * ranks
    heap_bytes = (ranks - 1) * _HEAP_BYTES + spreading_heaps * _SPREAD_BYTES
    return rules.later_bytes + mask_bytes + grammar_cache_bytes + heap_bytes

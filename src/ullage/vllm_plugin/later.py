"""What an engine's processes take after its KV cache has its size.  Pure."""

from __future__ import annotations

from ullage.units import MIB
from ullage.vllm_plugin.versions import EngineRules

# Measured of one worker after ten minutes of adversarial load (benchmarks/stress.py), beyond what
# is in use: free pieces between the blocks of steps of other sizes.
_HEAP_BYTES = 16 * MIB
# With the heap as it is, plain load takes this much more.
_SPREAD_BYTES = 48 * MIB


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
    heap_bytes = ranks * _HEAP_BYTES + spreading_heaps * _SPREAD_BYTES
    return rules.later_bytes + mask_bytes + grammar_cache_bytes + heap_bytes

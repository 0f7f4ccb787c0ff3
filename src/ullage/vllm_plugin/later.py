"""What an engine's processes take after its KV cache has its size.  Pure."""

from __future__ import annotations

from ullage.units import KIB
from ullage.vllm_plugin.versions import EngineRules

# Measured: the engine core loads the tokenizer once more, and asks for its vocabulary, after the
# sizing; a byte-level BPE of 151,936 tokens took 137 MiB, one of 16,384 took 14 MiB.
_TOKENIZER_BYTES_PER_TOKEN = 1 * KIB


def later_bytes(
    rules: EngineRules, *, vocabulary: int, max_num_seqs: int, grammar_cache_bytes: int
) -> int:
    """Bytes that are still to come, all of them at their most.

    `grammar_cache_bytes`: what the engine core may keep of compiled grammars.
    """
    tokenizer_bytes = vocabulary * _TOKENIZER_BYTES_PER_TOKEN
    # The first request with `allowed_token_ids` makes two masks of one byte a token, for all
    # requests at once (v1/worker/gpu_input_batch.py).
    mask_bytes = 2 * max_num_seqs * vocabulary
    return rules.later_bytes + tokenizer_bytes + mask_bytes + grammar_cache_bytes

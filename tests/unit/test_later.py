"""What is kept for the time after the KV cache has its size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ullage.units import KIB, MIB
from ullage.vllm_plugin.later import later_bytes
from ullage.vllm_plugin.versions import TABLE

(RULES,) = TABLE


def kept(
    vocabulary: int,
    max_num_seqs: int = 1,
    *,
    ranks: int = 1,
    grammar_cache_bytes: int = 0,
    spreading_heaps: int = 0,
) -> int:
    return later_bytes(
        RULES,
        vocabulary=vocabulary,
        max_num_seqs=max_num_seqs,
        grammar_cache_bytes=grammar_cache_bytes,
        ranks=ranks,
        spreading_heaps=spreading_heaps,
    )


@given(st.integers(1, 300_000), st.integers(1, 4096))
def test_masks_of_allowed_tokens_have_room_for_every_request_at_once(vocabulary, requests):
    more = kept(vocabulary, requests + 1) - kept(vocabulary, requests)
    assert more == 2 * vocabulary


def test_grammars_have_all_that_they_may_keep():
    assert kept(KIB, grammar_cache_bytes=32 * MIB) == kept(KIB) + 32 * MIB


def test_each_further_rank_has_masks_and_a_heap_and_the_other_processes_are_there_once():
    assert kept(KIB, 8, ranks=3) - kept(KIB, 8) == 2 * (2 * 8 * KIB + 16 * MIB)


def test_each_heap_that_spreads_large_blocks_has_room_for_that():
    assert kept(KIB, ranks=2, spreading_heaps=2) - kept(KIB, ranks=2) == 2 * 48 * MIB

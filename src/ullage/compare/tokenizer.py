"""A byte-level BPE tokenizer, trained on the spot on seeded synthetic words."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CONSONANTS: Final = "bcdfghjklmnprstvwz"
_VOWELS: Final = "aeiouy"
_WORDS: Final = 60_000
END_OF_TEXT: Final = "<|end|>"


def write_tokenizer(directory: Path, vocabulary: int, seed: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with exactly `vocabulary` tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(seed), trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise RuntimeError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens instead of {vocabulary}"
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "model_max_length": 1 << 30,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _lines(seed: int) -> Iterator[str]:
    generator = random.Random(seed)  # noqa: S311 - text for a tokenizer, not a secret
    words = [_word(generator) for _ in range(_WORDS)]
    for start in range(0, _WORDS, 20):
        yield " ".join(words[start : start + 20])


def _word(generator: random.Random) -> str:
    syllables = generator.randint(1, 4)
    return "".join(
        generator.choice(_CONSONANTS) + generator.choice(_VOWELS) for _ in range(syllables)
    )

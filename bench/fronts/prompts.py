"""Prompts that no cache knows: every one begins with another number."""

import random
from pathlib import Path

from tokenizers import Tokenizer

_SAMPLE_WORDS = 1000


class Prompts:
    """Unique within a run, and the same in every run of one seed."""

    def __init__(self, model: str, tokens: int, seed: int = 0) -> None:
        """`tokens`: how long a prompt is, about, without the chat template."""
        self._rng = random.Random(seed)
        self._words = max(1, round(tokens * words_per_token(model, self._rng)))

    def take(self, count: int) -> tuple[str, ...]:
        return tuple(text(self._rng, self._words) for _ in range(count))


def words_per_token(model: str, rng: random.Random) -> float:
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    return _SAMPLE_WORDS / len(tokenizer.encode(text(rng, _SAMPLE_WORDS)))


def text(rng: random.Random, words: int) -> str:
    return " ".join(f"{rng.randrange(1000, 10000)}" for _ in range(words))

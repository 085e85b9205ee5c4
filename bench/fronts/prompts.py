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
        tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
        self._words = max(1, round(tokens * _SAMPLE_WORDS / len(tokenizer.encode(self._text(_SAMPLE_WORDS)))))

    def take(self, count: int) -> tuple[str, ...]:
        return tuple(self._text(self._words) for _ in range(count))

    def _text(self, words: int) -> str:
        return " ".join(f"{self._rng.randrange(1000, 10000)}" for _ in range(words))

"""How many tokens texts have: in a thread of its own and in small parts, so that nobody's texts hold up others."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from api.frontend.fast_tokenizer import SHORT_CHARS

COUNTED_AT_A_TIME = 1 << 16
"""Characters. The tokenizer's answer is put into Python lists while nothing else of the process runs: 5 ms for so many.
More blocks the event loop for longer, and lets others wait longer for their turn; fewer cuts more words in two, each of
which counts as two tokens.
"""

_COUNTING = ThreadPoolExecutor(1, "counting")
"""Long conversations take minutes. In the threads that all share they would take those of everybody else."""


class TextCounter:
    def __init__(self, count: Callable[[str], int]) -> None:
        """`count`: the tokens of a short text."""
        self._count = count

    async def counts(self, texts: Sequence[str]) -> list[int]:
        """Of each text, by itself; of one longer than COUNTED_AT_A_TIME nearly."""
        if sum(map(len, texts)) <= SHORT_CHARS:
            return [self._count(text) for text in texts]
        counts, loop = [0] * len(texts), asyncio.get_running_loop()
        for batch in _batches(texts):
            counted = await loop.run_in_executor(_COUNTING, self._counted, [part for _, part in batch])
            for (number, _), tokens in zip(batch, counted, strict=True):
                counts[number] += tokens
        return counts

    def _counted(self, parts: list[str]) -> list[int]:
        return [self._count(part) for part in parts]


def _batches(texts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Parts of the texts, with their texts' numbers: about COUNTED_AT_A_TIME characters each."""
    batch: list[tuple[int, str]] = []
    num_chars = 0
    for number, text in enumerate(texts):
        for start in range(0, len(text), COUNTED_AT_A_TIME):
            part = text[start : start + COUNTED_AT_A_TIME]
            if batch and num_chars + len(part) > COUNTED_AT_A_TIME:
                yield batch
                batch, num_chars = [], 0
            batch.append((number, part))
            num_chars += len(part)
    if batch:
        yield batch

"""The number of tokens of texts, counted in one thread and in small parts: long texts must not delay other work."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from api.frontend.fast_tokenizer import SHORT_CHARS

COUNTED_AT_A_TIME = 1 << 16
"""Most text that is tokenized in one call, in characters. The tokenizer builds Python lists with the interpreter held:
about 5 ms for 65,536 characters. A higher value blocks the event loop and other counts for longer. A lower value cuts
more words in two, and each word that is cut adds a token to the count.
"""

_COUNTING = ThreadPoolExecutor(1, "counting")
"""The thread that counts. Counting a long conversation takes minutes: in asyncio's default executor it would occupy the
threads that other work needs.
"""


class TextCounter:
    def __init__(self, count: Callable[[str], int]) -> None:
        """`count` returns the number of tokens of a text of at most COUNTED_AT_A_TIME characters."""
        self._count = count

    async def counts(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text by itself. For a text longer than COUNTED_AT_A_TIME it is an approximation,
        because the text is cut into parts.
        """
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
    """Batches of at most COUNTED_AT_A_TIME characters. An entry of a batch is the index of a text and a part of it."""
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

"""PrefixKeys: which block of a prompt stands for its conversation. Pure.

The first blocks of a prompt are often a system prompt, which all requests of an application share, and its last blocks
are new with each turn. The key of a prompt is the first block after its *popular* prefix: the longest prefix that
more than a small share of the recent requests has. So a conversation keeps its key while its prompt grows, a system
prompt is split by what follows it, and the questions to one document have one key unless they are very many.

The popular prefix of a prompt is found in rounds. A round looks at the prefixes that are 1, 2, 4, 8 and so on blocks
longer than the longest popular one so far. Only these are counted.
"""

from collections.abc import Sequence
from typing import Final, final

from cluster.messages.kv_events import BlockKey

GENERATION: Final = 2048
"""Prompts of a generation. A prompt counts for one to two generations. More follows changes later, and takes memory (up
to 150 bytes for each of 12 prefixes of a prompt); fewer takes rare prefixes for popular ones by chance.
"""
POPULAR: Final = 32
"""Prompts with a prefix, of this generation and the one before, that make the prefix popular. Fewer tears conversations
and documents apart; more leaves more requests to one cell, whose load then sends them to any other.
"""


@final
class PrefixKeys:
    def __init__(self) -> None:
        self._counts: dict[BlockKey, int] = {}
        """Prompts of this generation with a prefix, by the last block of the prefix."""
        self._before: dict[BlockKey, int] = {}
        """The same for the generation before."""
        self._num_prompts = 0
        """Prompts of this generation."""

    def key_of(self, block_hashes: Sequence[BlockKey]) -> BlockKey | None:
        """The key of a prompt, which is counted. None if the prompt has no full block."""
        if not block_hashes:
            return None
        if self._num_prompts == GENERATION:
            self._before, self._counts, self._num_prompts = self._counts, {}, 0
        self._num_prompts += 1
        num_popular = 0
        while longer := self._round(block_hashes, num_popular):
            num_popular += longer
        return block_hashes[min(num_popular, len(block_hashes) - 1)]

    def _round(self, block_hashes: Sequence[BlockKey], start: int) -> int:
        """Count the prefixes of a round. Returns by how many blocks the longest popular one is longer than `start`."""
        counts, before = self._counts, self._before
        found, step = 0, 1
        while start + step <= len(block_hashes):
            block = block_hashes[start + step - 1]
            counts[block] = num = counts.get(block, 0) + 1
            if num + before.get(block, 0) >= POPULAR:
                found = step
            step *= 2
        return found

    def validate(self) -> None:
        """Assert every invariant."""
        assert self._num_prompts <= GENERATION
        assert all(num > 0 for num in self._counts.values())

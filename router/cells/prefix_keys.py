"""PrefixKeys: which block of a prompt stands for its conversation. Pure.

The first blocks of a prompt are often a system prompt, which all requests of an application share, and its last blocks
are new with each turn. The key of a prompt is the first block after its *popular* prefix: the longest prefix that
more than a given share of the recent prompts has. So a conversation keeps its key while its prompt grows, a system
prompt is split by what follows it, and the questions to one document have one key unless they are very many.

The popular prefix of a prompt is found in rounds. A round looks at the prefixes that are 1, 2, 4, 8 and so on blocks
longer than the longest popular one so far. Only these are counted. A prefix that was popular remains popular until it
has half of that share, so that keys do not go back and forth.
"""

from collections.abc import Sequence
from typing import Final, final

from cluster.messages.kv_events import BlockKey

GENERATION: Final = 2048
"""Prompts of a generation. A prompt counts for one to two generations. More follows changes later, and takes memory (up
to 150 bytes for each of 17 prefixes of a prompt); fewer takes rare prefixes for popular ones by chance.
"""
LEAST_POPULAR: Final = 16
"""Fewest prompts that make a prefix popular, whatever share they are. Fewer takes the turns of one conversation for
popular; more splits a system prompt later.
"""


@final
class PrefixKeys:
    def __init__(self) -> None:
        self._counts: dict[BlockKey, int] = {}
        """Prompts of this generation with a prefix, by the last block of the prefix."""
        self._before: dict[BlockKey, int] = {}
        """The same for the generation before."""
        self._num_prompts = self._num_before = 0
        """Prompts of this generation, and of the one before."""
        self._popular: set[BlockKey] = set()

    @property
    def num_counted(self) -> int:
        """Prefixes that are counted now."""
        return len(self._counts) + len(self._before)

    def count(self, block_hashes: Sequence[BlockKey], share: float) -> None:
        """Count a new prompt. `share`: of the recent prompts, which makes a prefix popular."""
        if self._num_prompts == GENERATION:
            self._begin_generation()
        self._num_prompts += 1
        most = max(LEAST_POPULAR, share * (self._num_prompts + self._num_before))
        num_popular = 0
        while longer := self._count_round(block_hashes, num_popular, most):
            num_popular += longer

    def key_at(self, block_hashes: Sequence[BlockKey]) -> int:
        """Index of the key of a prompt. It is the number of blocks if the whole prompt is popular."""
        num_popular = 0
        while longer := self._round(block_hashes, num_popular):
            num_popular += longer
        return num_popular

    def _round(self, block_hashes: Sequence[BlockKey], start: int) -> int:
        """By how many blocks the longest popular prefix of a round is longer than `start`."""
        found, step = 0, 1
        while start + step <= len(block_hashes):
            if block_hashes[start + step - 1] in self._popular:
                found = step
            step *= 2
        return found

    def _count_round(self, block_hashes: Sequence[BlockKey], start: int, most: float) -> int:
        """Count the prefixes of a round, and tell which are popular. Returns as `_round`."""
        counts, before, popular = self._counts, self._before, self._popular
        found, step = 0, 1
        while start + step <= len(block_hashes):
            block = block_hashes[start + step - 1]
            counts[block] = num = counts.get(block, 0) + 1
            num += before.get(block, 0)
            if num >= most:
                popular.add(block)
            elif num < most / 2:
                popular.discard(block)
            if block in popular:
                found = step
            step *= 2
        return found

    def _begin_generation(self) -> None:
        self._before, self._num_before = self._counts, self._num_prompts
        self._counts, self._num_prompts = {}, 0
        self._popular = {block for block in self._popular if block in self._before}

    def validate(self) -> None:
        """Assert every invariant."""
        assert self._num_prompts <= GENERATION
        assert all(num > 0 for num in self._counts.values())
        assert self._popular <= self._counts.keys() | self._before.keys()

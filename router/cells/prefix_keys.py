"""PrefixKeys: which block of a prompt stands for its conversation. Pure.

The first blocks of a prompt are often a system prompt, which all requests of an application share, and its last blocks
are new with each turn. The key of a prompt is the first block after its *popular* prefix: the longest prefix that many
requests have had at the same time. So a conversation, which has hardly more than one open request, keeps its key while
its prompt grows, however often it asks. A system prompt is split by what follows it. The questions to one document have
one key unless they come all at once.

The popular prefix of a prompt is found in rounds. A round looks at the prefixes that are 1, 2, 4, 8 and so on blocks
longer than the longest popular one so far. Only these are counted. A prefix stays popular for one or two generations of
requests after it last had so many, so that keys do not go back and forth with the load.
"""

from collections.abc import Sequence
from typing import Final, final

from cluster.messages.kv_events import BlockKey

GENERATION: Final = 2048
"""Requests of a generation. More splits a prefix for longer after its rush, and takes memory (80 bytes for each popular
prefix); fewer has keys change with the time of the day.
"""
LEAST_POPULAR: Final = 8
"""Fewest open requests that make a prefix popular, whatever share they are. Fewer splits a conversation that asks
several things at once; more leaves more requests to one cell.
"""


@final
class PrefixKeys:
    def __init__(self) -> None:
        self._counts: dict[BlockKey, int] = {}
        """Open requests with a prefix, by the last block of the prefix."""
        self._num_open = 0
        self._popular: set[BlockKey] = set()
        """Last blocks of the prefixes that were popular in this generation."""
        self._before: set[BlockKey] = set()
        """The same for the generation before."""
        self._num_requests = 0
        """Requests of this generation."""

    @property
    def num_remembered(self) -> int:
        """Prefixes that are counted, or popular."""
        return len(self._counts) + len(self._popular) + len(self._before)

    def key_at(self, block_hashes: Sequence[BlockKey]) -> int:
        """Index of the key of a prompt. It is the number of blocks if the whole prompt is popular."""
        num_popular = 0
        while longer := self._round(block_hashes, num_popular, []):
            num_popular += longer
        return num_popular

    def opened(self, block_hashes: Sequence[BlockKey], share: float) -> list[BlockKey]:
        """Count a request that is open from now on. Returns what `closed` needs. `share`: of the open requests, which
        makes a prefix popular.
        """
        if self._num_requests == GENERATION:
            self._popular, self._before, self._num_requests = set(), self._popular, 0
        self._num_requests += 1
        self._num_open += 1
        looked_at: list[BlockKey] = []
        num_popular = 0
        while longer := self._round(block_hashes, num_popular, looked_at):
            num_popular += longer
        counted = list(dict.fromkeys(looked_at))
        least = max(LEAST_POPULAR, share * self._num_open)
        for block in counted:
            self._counts[block] = num = self._counts.get(block, 0) + 1
            if num >= least:
                self._popular.add(block)
        return counted

    def closed(self, counted: list[BlockKey]) -> None:
        """A request is open no more."""
        self._num_open -= 1
        for block in counted:
            self._counts[block] -= 1
            if not self._counts[block]:
                del self._counts[block]

    def _round(self, block_hashes: Sequence[BlockKey], start: int, looked_at: list[BlockKey]) -> int:
        """Append the last blocks of a round's prefixes. Returns by how many blocks the longest popular one of them is
        longer than `start`.
        """
        found, step = 0, 1
        while start + step <= len(block_hashes):
            block = block_hashes[start + step - 1]
            looked_at.append(block)
            if block in self._popular or block in self._before:
                found = step
            step *= 2
        return found

    def validate(self) -> None:
        """Assert every invariant."""
        assert self._num_requests <= GENERATION
        assert all(0 < num <= self._num_open for num in self._counts.values())

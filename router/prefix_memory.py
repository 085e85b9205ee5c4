"""Which worker computed or generated which prompt last, so that the next turn of a chat finds what it holds.

A guess made from placements alone: what a worker has evicted since is not known here. Prompts are remembered by chained
digests of chunks of tokens, so a prompt is found by any prompt that it starts.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cluster.types import WorkerId

CHUNK_TOKENS = 64
MAX_CHUNKS = 200_000
"""Remembered at most: prompts of about 12 million tokens, some 40 MB."""


class Held(NamedTuple):
    worker: WorkerId
    num_tokens: int
    """Of the prompt, from its start, that the worker has had before."""


def prefix_chain(token_ids: Sequence[int]) -> list[bytes]:
    """One digest per full chunk, of all tokens up to its end."""
    chain: list[bytes] = []
    ids = array("I", token_ids)
    for start in range(0, len(ids) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
        digest = hashlib.blake2b(chain[-1] if chain else b"", digest_size=8)
        digest.update(ids[start : start + CHUNK_TOKENS].tobytes())
        chain.append(digest.digest())
    return chain


class PrefixMemory:
    __slots__ = ("_workers",)

    def __init__(self) -> None:
        self._workers: OrderedDict[bytes, WorkerId] = OrderedDict()

    def remember(self, chain: Sequence[bytes], worker: WorkerId) -> None:
        for digest in chain:
            self._workers[digest] = worker
            self._workers.move_to_end(digest)
        while len(self._workers) > MAX_CHUNKS:
            self._workers.popitem(last=False)

    def longest(self, chain: Sequence[bytes], is_usable: Callable[[WorkerId], bool]) -> Held | None:
        """The usable worker that has had the longest part of the prompt."""
        for number in range(len(chain), 0, -1):
            worker = self._workers.get(chain[number - 1])
            if worker is not None and is_usable(worker):
                return Held(worker, number * CHUNK_TOKENS)
        return None

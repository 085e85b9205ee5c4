"""KvBacklog: KV events that have come from workers, and are not in the index yet. Pure.

A message of 1,024 blocks takes the Scheduler a millisecond or two, and after a restart hundreds come at once. So their
owner (router/scheduler_service.py) takes them from here in slices, between placements. The messages of a worker stay in
order. When the backlog is full, messages are dropped: the index notices the gap in their numbers and asks for a
snapshot.
"""

from collections import Counter, deque
from typing import Final

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvEvents

SLICE_BLOCKS: Final = 1024
"""Blocks after which a slice ends, with the message that reaches it. More delays placements, by one or two milliseconds
for 1,000 blocks; fewer spends more time beside the index.
"""
MAX_WAITING_BLOCKS: Final = 1 << 20
"""Blocks in the backlog. More takes memory, about 60 bytes for each block; fewer has more workers send snapshots after
a burst of events.
"""
_MESSAGE_BLOCKS: Final = 16
"""Blocks as which a message counts beyond its own, so that slices and the backlog are bounded in messages, too."""


class KvBacklog:
    def __init__(self) -> None:
        self._waiting: deque[KvEvents] = deque()
        self._num_of: Counter[WorkerId] = Counter()
        """Messages in the backlog by worker."""
        self._num_blocks = 0

    def __len__(self) -> int:
        """Messages in the backlog."""
        return len(self._waiting)

    def __contains__(self, worker: WorkerId) -> bool:
        """Whether messages of the worker are in the backlog."""
        return worker in self._num_of

    def add(self, events: KvEvents) -> bool:
        """Returns False if the backlog is full, and the message is dropped."""
        num_blocks = _num_blocks(events)
        if self._waiting and self._num_blocks + num_blocks > MAX_WAITING_BLOCKS:
            return False
        self._waiting.append(events)
        self._num_of[events.worker] += 1
        self._num_blocks += num_blocks
        return True

    def take_slice(self) -> list[KvEvents]:
        """The oldest messages, up to SLICE_BLOCKS and one message."""
        taken: list[KvEvents] = []
        num_blocks = 0
        while self._waiting and num_blocks < SLICE_BLOCKS:
            events = self._waiting.popleft()
            taken.append(events)
            num_blocks += _num_blocks(events)
            self._num_of[events.worker] -= 1
            if not self._num_of[events.worker]:
                del self._num_of[events.worker]
        self._num_blocks -= num_blocks
        return taken


def _num_blocks(events: KvEvents) -> int:
    return _MESSAGE_BLOCKS + sum(len(change.block_hashes or ()) for change in events.changes)

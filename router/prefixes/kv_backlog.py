"""KvBacklog: KV events that have come from workers, and are not in the index yet. Pure.

A message of 1,024 blocks takes the Scheduler a millisecond or two, and after a restart hundreds come at once. So their
owner (router/scheduler_service.py) takes them from here in slices, between placements. The messages of a worker stay in
order, and the workers take turns, a message each: a worker that sends much delays its own messages.

A message is dropped if it is too large, or if too much of its worker waits: the index notices the gap in the worker's
numbers and asks for a snapshot. While the whole backlog is full, a worker may have no more than an equal share of it.

Invariant: the blocks of each worker and of all are those of the messages that wait.
"""

from typing import Final

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvEvents
from router.turns import Turns

SLICE_BLOCKS: Final = 1024
"""Blocks after which a slice ends, with the message that reaches it. More delays placements, by one or two milliseconds
for 1,000 blocks; fewer spends more time beside the index.
"""
MAX_MESSAGE_BLOCKS: Final = 6 * 1024
"""Blocks of the largest message that is taken. Workers send at most 1,024 (cluster/engine/kv_mirror.py), which count as
5,136 if each is a change of its own. More has one message delay placements for longer; fewer has workers with many
small changes send snapshots instead.
"""
MAX_OF_WORKER: Final = 1 << 20
"""Blocks of one worker in the backlog. More lets one worker take memory, about 60 bytes for each block; fewer never
takes in the snapshot of a worker that caches more.
"""
MAX_WAITING_BLOCKS: Final = 1 << 21
"""Blocks in the backlog from which each worker has a share. Shares shrink while workers come, so hundreds of them may
have five times as many together. More takes memory, in the same way; fewer has more workers send snapshots after a
burst of events.
"""
_MESSAGE_BLOCKS: Final = 16
"""Blocks as which a message counts beyond its own, so that slices and the backlog are bounded in messages, too."""
_CHANGE_BLOCKS: Final = 4
"""Blocks as which a change counts beyond its own, by the time that it takes the index: more has slices end early, fewer
has slices of many small changes delay placements.
"""


class KvBacklog:
    def __init__(self) -> None:
        self._turns: Turns[WorkerId, KvEvents] = Turns()
        self._blocks_of: dict[WorkerId, int] = {}
        """Blocks of each worker that has messages here."""
        self._num_blocks = 0

    def __len__(self) -> int:
        """Messages in the backlog."""
        return len(self._turns)

    def __contains__(self, worker: WorkerId) -> bool:
        """Whether messages of the worker are in the backlog."""
        return worker in self._turns

    def add(self, events: KvEvents) -> bool:
        """Returns False if the message is dropped."""
        worker, num_blocks = events.worker, _num_blocks(events)
        if num_blocks > MAX_MESSAGE_BLOCKS or (worker in self and not self._has_room(worker, num_blocks)):
            return False
        self._turns.add(worker, events)
        self._blocks_of[worker] = self._blocks_of.get(worker, 0) + num_blocks
        self._num_blocks += num_blocks
        return True

    def take_slice(self) -> list[KvEvents]:
        """The oldest message of each worker in turn, up to SLICE_BLOCKS and one message."""
        taken: list[KvEvents] = []
        num_taken = 0
        while self._turns and num_taken < SLICE_BLOCKS:
            worker, events = self._turns.take()
            taken.append(events)
            num_blocks = _num_blocks(events)
            num_taken += num_blocks
            self._blocks_of[worker] -= num_blocks
            if worker not in self._turns:
                del self._blocks_of[worker]
        self._num_blocks -= num_taken
        return taken

    def validate(self) -> None:
        """Assert every invariant."""
        self._turns.validate()
        waiting: dict[WorkerId, int] = {}
        for worker, events in self._turns:
            waiting[worker] = waiting.get(worker, 0) + _num_blocks(events)
        assert self._blocks_of == waiting
        assert all(number <= MAX_OF_WORKER for number in self._blocks_of.values())
        assert self._num_blocks == sum(self._blocks_of.values())

    def _has_room(self, worker: WorkerId, num_more: int) -> bool:
        """Whether a worker that has messages here may add blocks."""
        most = MAX_OF_WORKER
        if self._num_blocks + num_more > MAX_WAITING_BLOCKS:
            most = min(most, MAX_WAITING_BLOCKS // len(self._blocks_of))
        return self._blocks_of[worker] + num_more <= most


def _num_blocks(events: KvEvents) -> int:
    return _MESSAGE_BLOCKS + sum([_CHANGE_BLOCKS + len(change.block_hashes or ()) for change in events.changes])

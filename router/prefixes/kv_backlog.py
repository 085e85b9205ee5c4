"""KvBacklog: KV events that have come from workers, and are not in the index yet. Pure.

A message of 1,024 blocks takes the Scheduler a millisecond or two, and after a restart hundreds come at once. So their
owner (router/scheduler_service.py) takes them from here in slices, between placements. The messages of a worker stay in
order, and the workers take turns, a message each: a worker that sends much delays its own messages.

A message is dropped if it is too large, or if too much of its worker waits: the index notices the gap in the worker's
numbers and asks for a snapshot. While the whole backlog is full, a worker may have no more than an equal share of it.

Invariants: the number of messages, and the blocks of each worker and of all, are those of the messages that wait; only
workers with messages have a turn.
"""

from collections import OrderedDict, deque
from typing import Final

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvEvents

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


class _Waiting:
    """The messages of one worker."""

    __slots__ = ("messages", "num_blocks")

    def __init__(self) -> None:
        self.messages: deque[KvEvents] = deque()
        self.num_blocks = 0


class KvBacklog:
    def __init__(self) -> None:
        self._turns: OrderedDict[WorkerId, _Waiting] = OrderedDict()
        """The worker whose turn is next is the first one."""
        self._num_messages = 0
        self._num_blocks = 0

    def __len__(self) -> int:
        """Messages in the backlog."""
        return self._num_messages

    def __contains__(self, worker: WorkerId) -> bool:
        """Whether messages of the worker are in the backlog."""
        return worker in self._turns

    def add(self, events: KvEvents) -> bool:
        """Returns False if the message is dropped."""
        num_blocks = _num_blocks(events)
        waiting = self._turns.get(events.worker)
        if num_blocks > MAX_MESSAGE_BLOCKS or (waiting is not None and not self._has_room(waiting, num_blocks)):
            return False
        if waiting is None:
            waiting = self._turns[events.worker] = _Waiting()
        waiting.messages.append(events)
        waiting.num_blocks += num_blocks
        self._num_messages += 1
        self._num_blocks += num_blocks
        return True

    def take_slice(self) -> list[KvEvents]:
        """The oldest message of each worker in turn, up to SLICE_BLOCKS and one message."""
        taken: list[KvEvents] = []
        num_taken = 0
        while self._turns and num_taken < SLICE_BLOCKS:
            worker, waiting = next(iter(self._turns.items()))
            taken.append(waiting.messages.popleft())
            num_blocks = _num_blocks(taken[-1])
            waiting.num_blocks -= num_blocks
            num_taken += num_blocks
            if waiting.messages:
                self._turns.move_to_end(worker)
            else:
                del self._turns[worker]
        self._num_messages -= len(taken)
        self._num_blocks -= num_taken
        return taken

    def validate(self) -> None:
        """Assert every invariant."""
        for waiting in self._turns.values():
            assert waiting.messages
            assert waiting.num_blocks == sum(map(_num_blocks, waiting.messages)) <= MAX_OF_WORKER
        assert self._num_messages == sum(len(waiting.messages) for waiting in self._turns.values())
        assert self._num_blocks == sum(waiting.num_blocks for waiting in self._turns.values())

    def _has_room(self, waiting: _Waiting, num_more: int) -> bool:
        """Whether a worker that has messages here may add blocks."""
        most = MAX_OF_WORKER
        if self._num_blocks + num_more > MAX_WAITING_BLOCKS:
            most = min(most, MAX_WAITING_BLOCKS // len(self._turns))
        return waiting.num_blocks + num_more <= most


def _num_blocks(events: KvEvents) -> int:
    return _MESSAGE_BLOCKS + sum([_CHANGE_BLOCKS + len(change.block_hashes or ()) for change in events.changes])

"""Writes safety events into PostgreSQL in the background. The events of a tenant are written in their order, and wait
while PostgreSQL is away.

What `note` has accepted is kept until it is written. Waiting events take a bounded part of the memory, and one tenant a
bounded part of that. A request whose policy demands the audit asks `is_full` first, and waits for
`NotedEvent.is_durable` before its answer ends.
"""

import asyncio
import logging
from collections import deque

import msgspec

from api.safety.audit.event import SafetyEvent
from api.state.lifecycle import ChatState
from cluster.ending import end_tasks
from cluster.errors import Conflict, ServingError, StateUnavailable
from cluster.metrics.safety import SAFETY_EVENTS, SAFETY_EVENTS_WAITING

logger = logging.getLogger("baton.safety")

MAX_WAITING_BYTES = 128 << 20
"""Bytes of the events that wait to be written. More takes memory of the ingress; less refuses requests that demand the
audit sooner while PostgreSQL is away.
"""
LARGEST_SHARE = 2
"""The divisor of MAX_WAITING_BYTES that gives the most one tenant may fill. A smaller divisor lets a tenant go on for
longer during an outage; a larger one leaves more room to other tenants.
"""
EVENT_BYTES = 1_000
"""Bytes that an event takes in memory beside its encoding. A higher number refuses events sooner; a lower one takes
more memory than MAX_WAITING_BYTES says.
"""
MOST_AT_ONCE, MOST_BYTES_AT_ONCE = 50, 2 << 20
"""Events of one transaction, and their bytes unless a single event is larger. More catches up faster after an outage;
fewer keeps the event loop, and other replicas that write events of the tenant, waiting for less time.
"""
NUM_LANES = 2
"""Transactions at a time. More writes the events of many tenants faster; fewer leaves more connections to requests.
With one, a tenant whose events cannot be written would delay all others.
"""
INTERVAL_S = 0.02
"""The time between two transactions of a tenant, unless many events wait, in seconds. Shorter makes more transactions,
which cost CPU; longer delays answers that wait for their events to be written.
"""
RETRY_S = 1.0
"""The time between two tries while PostgreSQL is away, in seconds. Shorter costs more CPU; longer writes later."""


class NotedEvent:
    """An event that waits to be written."""

    __slots__ = ("_is_stored", "_settled", "encoded", "id")

    def __init__(self, event: SafetyEvent) -> None:
        """Raises ValueError for an event with a value of a wrong type, which could not be read again."""
        self.id = event.id
        self.encoded = msgspec.msgpack.encode(event)
        self.event()
        self._settled = asyncio.Event()
        self._is_stored = False

    @property
    def size(self) -> int:
        return len(self.encoded) + EVENT_BYTES

    def event(self) -> SafetyEvent:
        return msgspec.msgpack.decode(self.encoded, type=SafetyEvent)

    async def is_durable(self) -> bool:
        """Wait until the event is written. False if it never will be, because its tenant was erased."""
        await self._settled.wait()
        return self._is_stored

    def settle(self, is_stored: bool) -> None:
        self._is_stored = is_stored
        self._settled.set()


class _TenantQueue:
    """The waiting events of one tenant."""

    def __init__(self) -> None:
        self.waiting: deque[NotedEvent] = deque()
        self.num_bytes = 0

    def first(self) -> list[NotedEvent]:
        """The events of the next transaction."""
        batch: list[NotedEvent] = []
        num_bytes = 0
        for noted in self.waiting:
            num_bytes += noted.size
            if batch and (len(batch) == MOST_AT_ONCE or num_bytes > MOST_BYTES_AT_ONCE):
                break
            batch.append(noted)
        return batch


class AuditWriter:
    def __init__(self, state: ChatState) -> None:
        self._state = state
        self._queues: dict[str, _TenantQueue] = {}
        """The queues that are not empty, by tenant."""
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        """The tenants whose events can be written now, each once, and none that a lane is writing for."""
        self._num_bytes = 0
        self._is_away = False
        """PostgreSQL was away at the last try."""
        self._failing: set[str] = set()
        """The tenants whose last try has failed for another reason."""
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._lanes: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._lanes = [asyncio.create_task(self._keep_writing()) for _ in range(NUM_LANES)]

    def is_full(self, tenant: str) -> bool:
        """Whether no event of the tenant can be kept now. Its requests that demand the audit are to be refused."""
        return not self._has_room(tenant, EVENT_BYTES)

    def note(self, event: SafetyEvent) -> NotedEvent | None:
        """Keep an event until it is written. None if there is no room for it: then it is lost, and an answer that
        demands the audit must not go on.
        """
        noted = NotedEvent(event)
        if not self._has_room(event.tenant, noted.size):
            SAFETY_EVENTS.labels("lost").inc()
            return None
        queue = self._queues.get(event.tenant)
        if queue is None:
            queue = self._queues[event.tenant] = _TenantQueue()
            self._is_empty.clear()
            self._write_later(event.tenant, INTERVAL_S)
        queue.waiting.append(noted)
        queue.num_bytes += noted.size
        self._num_bytes += noted.size
        SAFETY_EVENTS_WAITING.inc()
        return noted

    async def drained(self, patience_s: float) -> int:
        """Wait until all events are written, but not longer than `patience_s`. Returns the number of events that still
        wait.
        """
        try:
            async with asyncio.timeout(patience_s):
                await self._is_empty.wait()
        except TimeoutError:
            logger.error("%d safety events still wait to be written", self._num_waiting())
        return self._num_waiting()

    async def close(self) -> None:
        """Stop. What still waits is lost."""
        await end_tasks(self._lanes)
        if lost := self._num_waiting():
            logger.error("%d safety events are lost: they were not written before the end", lost)
            SAFETY_EVENTS.labels("lost").inc(lost)
            SAFETY_EVENTS_WAITING.dec(lost)

    def _has_room(self, tenant: str, size: int) -> bool:
        queue = self._queues.get(tenant)
        share = MAX_WAITING_BYTES // LARGEST_SHARE - (queue.num_bytes if queue else 0)
        return size <= min(share, MAX_WAITING_BYTES - self._num_bytes)

    def _write_later(self, tenant: str, wait_s: float) -> None:
        """Write for the tenant after this time, behind the tenants that are ready already."""
        asyncio.get_running_loop().call_later(wait_s, self._ready.put_nowait, tenant)

    def _num_waiting(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    async def _keep_writing(self) -> None:
        while True:
            tenant = await self._ready.get()
            queue = self._queues[tenant]
            batch = queue.first()
            try:
                stored = await self._state.stores.audit.append([noted.event() for noted in batch])
            except StateUnavailable as error:
                self._note_outage(error)
                await asyncio.sleep(RETRY_S)  # in the lane: PostgreSQL is away for other tenants, too
                self._write_later(tenant, 0.0)
                continue
            except Conflict:  # the tenant is being erased
                stored = set()
            except Exception as error:  # every failure may be over at the next try, and no event may be lost by one
                self._note_failure(tenant, error)
                self._write_later(tenant, RETRY_S)
                continue
            self._note_success(tenant)
            self._settle(queue, batch, stored)
            if queue.waiting:
                self._write_later(tenant, 0.0 if len(queue.waiting) >= MOST_AT_ONCE else INTERVAL_S)
            else:
                del self._queues[tenant]
            if not self._queues:
                self._is_empty.set()

    def _settle(self, queue: _TenantQueue, batch: list[NotedEvent], stored: set[str]) -> None:
        for noted in batch:
            queue.waiting.popleft()
            queue.num_bytes -= noted.size
            self._num_bytes -= noted.size
            noted.settle(noted.id in stored)
        SAFETY_EVENTS_WAITING.dec(len(batch))
        num_stored = sum(noted.id in stored for noted in batch)
        SAFETY_EVENTS.labels("written").inc(num_stored)
        SAFETY_EVENTS.labels("erased").inc(len(batch) - num_stored)

    def _note_outage(self, error: StateUnavailable) -> None:
        if not self._is_away:
            logger.error("safety events cannot be written, and wait: %s", error)
        self._is_away = True

    def _note_failure(self, tenant: str, error: Exception) -> None:
        if tenant not in self._failing:
            cause = None if isinstance(error, ServingError) else error
            logger.error("safety events of tenant %s cannot be written, and wait: %s", tenant, error, exc_info=cause)
        self._failing.add(tenant)

    def _note_success(self, tenant: str) -> None:
        if self._is_away:
            logger.info("safety events are written again")
        if tenant in self._failing:
            logger.info("safety events of tenant %s are written again", tenant)
        self._is_away = False
        self._failing.discard(tenant)

"""Writes the events of all running responses of a replica into PostgreSQL, in common transactions.

A client sees an event when it is stored, so that a client that resumes a stream finds every event that it has seen. But
clients do not wait for a PostgreSQL that is slow or away.
"""

import asyncio
import logging
from collections.abc import Callable

from api.state.encryption.tenant_keys import TenantKey
from api.state.event_streams.event_log import EventLog
from api.state.event_streams.live_tails import LiveTails, TailEvents
from api.state.event_streams.response_events import BATCH_BYTES, ResponseEvents, StoredEvents, batches_of
from api.state.postgres.stores.responses import GENERATION_CLAIM, RUNNING
from cluster.ending import end_tasks
from cluster.errors import Conflict, StateUnavailable

logger = logging.getLogger("baton.state")

INTERVAL_S = 0.02
"""The time between two transactions, in seconds. Shorter costs more CPU: 50 transactions a second cost a replica some
percent of a core, for any number of responses. Longer shows the tokens of a fast model in larger groups.
"""
PATIENCE_S = 0.25
"""How long clients wait for a transaction before they see events that are not stored, in seconds. Shorter shows more
such events, which a resumed stream may lack; longer stalls streams while PostgreSQL is slow.
"""
RETRY_S = 0.5
"""The time between two tries while PostgreSQL is away, in seconds. Shorter costs more CPU; longer stores events later.
"""
MAX_BYTES = 4e6
"""Bytes of one transaction. More catches up faster after an outage; fewer occupies the event loop and PostgreSQL for
less time at once.
"""
RENEWALS_PER_CLAIM = 5
"""Renewals of a generation claim in the time that it lasts. Fewer loses claims after fewer failed renewals; more makes
more transactions.
"""


class RunningResponse:
    """A response that this replica generates."""

    def __init__(
        self, key: TenantKey, response: str, log: EventLog, status: Callable[[], str], stop: Callable[[bool], None]
    ) -> None:
        """`status`: returns the status of the response. `stop`: called when the response must end, with True if a
        client has cancelled it, and with False if PostgreSQL has it as over or gone.
        """
        self.key = key
        self.response = response
        self.log = log
        self.status = status
        self.stop = stop
        self.num_written = 0
        self.is_ending = False
        """The turn has begun to store the end of the response: it stores the remaining events, too."""


class EventWriter:
    def __init__(self, events: ResponseEvents, tails: LiveTails) -> None:
        self._events = events
        self._tails = tails
        self._running: dict[str, RunningResponse] = {}
        self._has_more = asyncio.Event()
        """A log may have events that are not written."""
        self._is_behind = False
        """PostgreSQL does not keep up, so clients see events before they are stored."""
        self._one_at_a_time = asyncio.Lock()
        """Two transactions that change many responses each could deadlock."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep_writing()), asyncio.create_task(self._keep_renewing())]

    async def close(self) -> None:
        await end_tasks(self._tasks)

    def add(self, running: RunningResponse) -> None:
        self._running[running.response] = running

    def forget(self, running: RunningResponse) -> None:
        self._running.pop(running.response, None)

    def write_soon(self, running: RunningResponse) -> None:
        """To be called when the log of the response has more events."""
        if self._is_behind:
            running.log.release(len(running.log))
        self._has_more.set()

    async def publish_end(self, running: RunningResponse) -> None:
        """Publish the events that the turn has stored itself, for clients that read them from other replicas."""
        lines = running.log.since(running.num_written)
        for batch in batches_of(running.key, running.response, running.num_written, lines):
            await self._publish([batch])

    async def _publish(self, batches: list[StoredEvents]) -> None:
        tails = (TailEvents(one.first_number, one.last_number, one.key_version, one.sealed) for one in batches)
        named = zip(batches, tails, strict=True)
        await self._tails.publish([(batch.tenant, batch.response, tail) for batch, tail in named])

    async def _keep_writing(self) -> None:
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            batches = self._batches()
            if batches and not await self._is_written(batches):
                self._fall_behind()
                self._has_more.set()
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(INTERVAL_S)

    def _batches(self) -> list[StoredEvents]:
        """The next batches to write, one for each response that has events. Events beyond MAX_BYTES come next time."""
        batches: list[StoredEvents] = []
        num_bytes = 0.0
        for running in self._running.values():
            if num_bytes > MAX_BYTES:
                self._has_more.set()
                break
            events = [] if running.is_ending else running.log.since(running.num_written, BATCH_BYTES)
            if events:
                batches.append(
                    StoredEvents.of(running.key, running.response, running.status(), running.num_written, events)
                )
                num_bytes += len(batches[-1].sealed)
                if running.num_written + len(events) < len(running.log):
                    self._has_more.set()
        return batches

    async def _is_written(self, batches: list[StoredEvents]) -> bool:
        """Write batches, and release and publish their events. False while PostgreSQL is away."""
        late = asyncio.get_running_loop().call_later(PATIENCE_S, self._fall_behind)
        try:
            async with self._one_at_a_time:
                written = await self._events.append(batches)
            late.cancel()
            self._is_behind = False
            for batch in batches:
                if batch.response in written:
                    self._has_written(batch.response, batch.last_number + 1)
                    self._stop_if_over(batch.response, written)
                else:
                    await self._check_refused(batch)
            await self._publish([batch for batch in batches if batch.response in written])
        except StateUnavailable:
            return False
        except Exception:
            logger.exception("the events of %d responses could not be written", len(batches))
            return False
        finally:
            late.cancel()
        return True

    async def _check_refused(self, batch: StoredEvents) -> None:
        """Find out why a batch was not written: the response is over, or an earlier try has written the batch after
        all.
        """
        try:
            standing = await self._events.standing(batch.tenant, batch.response)
        except Conflict:  # the tenant is being erased
            standing = None
        if standing is None or standing.status not in RUNNING:
            self._stop_if_over(batch.response, {})
        else:
            self._has_written(batch.response, standing.last_number + 1)
            self._has_more.set()

    def _has_written(self, response: str, number: int) -> None:
        if running := self._running.get(response):
            running.num_written = number
            running.log.release(number)

    def _stop_if_over(self, response: str, is_cancelled: dict[str, bool]) -> None:
        """Stop a response that is cancelled or over. `is_cancelled`: of the responses that still run in PostgreSQL."""
        running = self._running.get(response)
        if running is not None and not running.is_ending and is_cancelled.get(response) is not False:
            running.stop(response in is_cancelled)

    def _fall_behind(self) -> None:
        self._is_behind = True
        for running in self._running.values():
            if not running.is_ending:
                running.log.release(len(running.log))

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(GENERATION_CLAIM.total_seconds() / RENEWALS_PER_CLAIM)
            responses = [(running.key.tenant, running.response) for running in self._running.values()]
            if responses:
                try:
                    async with self._one_at_a_time:
                        is_cancelled = await self._events.renew(responses, GENERATION_CLAIM)
                except Exception as error:
                    logger.warning("the generation claims of %d responses were not renewed: %s", len(responses), error)
                    continue
                for _, response in responses:
                    self._stop_if_over(response, is_cancelled)

"""The events of all running responses of a replica on their way into PostgreSQL, written together.

Clients see an event when it is durable, so that whoever resumes a stream finds what it has seen; but they do not wait
for a PostgreSQL that is slow or away.
"""

import asyncio
import logging
from collections.abc import Callable

from api.state.encryption.tenant_keys import TenantKey
from api.state.event_streams.event_log import EventLog
from api.state.event_streams.live_tails import LiveTails, TailEvents
from api.state.event_streams.response_events import BATCH_BYTES, ResponseEvents, StoredEvents, batches_of
from api.state.postgres.stores.responses import LEASE, RUNNING
from cluster.errors import Conflict, StateUnavailable

logger = logging.getLogger("baton.state")

INTERVAL_S = 0.02
"""Between two transactions: 50 a second cost a replica some percent of a core, however many responses share them. The
clients of a fast model see some tokens at a time.
"""
PATIENCE_S = 0.25
"""How long clients wait for PostgreSQL."""
RETRY_S = 0.5
MAX_BYTES = 4e6
"""Of a transaction: what has piled up is written little by little."""
RENEWALS_PER_LEASE = 5


class RunningResponse:
    """A response that is being generated here."""

    def __init__(
        self, key: TenantKey, response: str, log: EventLog, status: Callable[[], str], stop: Callable[[bool], None]
    ) -> None:
        """`status`: of the response, now. `stop` is called when it must end: because somebody has cancelled it, or
        (False) because it is over or gone without us.
        """
        self.key = key
        self.response = response
        self.log = log
        self.status = status
        self.stop = stop
        self.num_written = 0
        self.is_ending = False
        """Who generates it writes the rest."""


class EventWriter:
    def __init__(self, events: ResponseEvents, tails: LiveTails) -> None:
        self._events = events
        self._tails = tails
        self._running: dict[str, RunningResponse] = {}
        self._told = asyncio.Event()
        self._is_behind = False
        """PostgreSQL does not keep up."""
        self._one_at_a_time = asyncio.Lock()
        """Transactions that change many responses would wait for each other for ever."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep_writing()), asyncio.create_task(self._keep_renewing())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def add(self, running: RunningResponse) -> None:
        self._running[running.response] = running

    def forget(self, running: RunningResponse) -> None:
        self._running.pop(running.response, None)

    def tell(self, running: RunningResponse) -> None:
        """Its log has more events."""
        if self._is_behind:
            running.log.release(len(running.log))
        self._told.set()

    async def pass_on(self, running: RunningResponse) -> None:
        """What was written of it elsewhere, to those who follow it from other replicas."""
        lines = running.log.since(running.num_written)
        for batch in batches_of(running.key, running.response, running.num_written, lines):
            await self._publish([batch])

    async def _publish(self, batches: list[StoredEvents]) -> None:
        tails = (TailEvents(one.first_number, one.last_number, one.key_version, one.sealed) for one in batches)
        named = zip(batches, tails, strict=True)
        await self._tails.publish([(batch.tenant, batch.response, tail) for batch, tail in named])

    async def _keep_writing(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            batches = self._batches()
            if batches and not await self._is_written(batches):
                self._fall_behind()
                self._told.set()
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(INTERVAL_S)

    def _batches(self) -> list[StoredEvents]:
        """What is to be written next; there may be more."""
        batches: list[StoredEvents] = []
        num_bytes = 0.0
        for running in self._running.values():
            if num_bytes > MAX_BYTES:
                self._told.set()
                break
            events = [] if running.is_ending else running.log.since(running.num_written, BATCH_BYTES)
            if events:
                batches.append(
                    StoredEvents.of(running.key, running.response, running.status(), running.num_written, events)
                )
                num_bytes += len(batches[-1].sealed)
                if running.num_written + len(events) < len(running.log):
                    self._told.set()
        return batches

    async def _is_written(self, batches: list[StoredEvents]) -> bool:
        """False while PostgreSQL is away."""
        late = asyncio.get_running_loop().call_later(PATIENCE_S, self._fall_behind)
        try:
            async with self._one_at_a_time:
                written = await self._events.append(batches)
            late.cancel()
            self._is_behind = False
            for batch in batches:
                if batch.response in written:
                    self._has_written(batch.response, batch.last_number + 1)
                    self._heed(batch.response, written)
                else:
                    await self._look_at(batch)
            await self._publish([batch for batch in batches if batch.response in written])
        except StateUnavailable:
            return False
        except Exception:
            logger.exception("the events of %d responses were not written", len(batches))
            return False
        finally:
            late.cancel()
        return True

    async def _look_at(self, batch: StoredEvents) -> None:
        """It was not written: it is over, or an earlier try has written it after all."""
        try:
            standing = await self._events.standing(batch.tenant, batch.response)
        except Conflict:  # its tenant is being erased
            standing = None
        if standing is None or standing.status not in RUNNING:
            self._heed(batch.response, {})
        else:
            self._has_written(batch.response, standing.last_number + 1)
            self._told.set()  # there may be more

    def _has_written(self, response: str, number: int) -> None:
        if running := self._running.get(response):
            running.num_written = number
            running.log.release(number)

    def _heed(self, response: str, standing: dict[str, bool]) -> None:
        running = self._running.get(response)
        if running is not None and not running.is_ending and standing.get(response) is not False:
            running.stop(response in standing)

    def _fall_behind(self) -> None:
        self._is_behind = True
        for running in self._running.values():
            if not running.is_ending:
                running.log.release(len(running.log))

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(LEASE.total_seconds() / RENEWALS_PER_LEASE)
            responses = [(running.key.tenant, running.response) for running in self._running.values()]
            if responses:
                try:
                    async with self._one_at_a_time:
                        standing = await self._events.renew(responses, LEASE)
                except Exception as error:
                    logger.warning("the leases of %d responses were not renewed: %s", len(responses), error)
                    continue
                for _, response in responses:
                    self._heed(response, standing)

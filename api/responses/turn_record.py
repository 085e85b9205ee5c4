"""The record of one turn: its events in memory for clients, and in PostgreSQL if the turn is stored."""

import asyncio
import logging
import time
from typing import Any

from api.state.event_streams.event_log import EventLog, LogSpace
from api.state.event_streams.event_writer import EventWriter, RunningResponse
from api.state.postgres.stores.responses import Ending, Responses
from api.wire.responses.events import Event
from cluster.errors import StateUnavailable

logger = logging.getLogger("baton.turns")

PATIENCE_S = 2.0
"""How long clients wait for PostgreSQL to store the end of a response before they see it, in seconds. Shorter shows
more ends that are not stored; longer stalls clients while PostgreSQL is away.
"""
FINISH_RETRY_S = 1.0
"""The time between two tries to store the end of a response, in seconds. Shorter costs more CPU during an outage;
longer stores the end later.
"""
FINISH_WITHIN_S = 600.0
"""How long the end of a response waits for PostgreSQL before it is lost, in seconds. Shorter loses more responses in an
outage; longer takes memory for longer.
"""


class TurnRecord:
    def __init__(self, tenant: str, created: dict[str, Any], space: LogSpace) -> None:
        """`created`: the response as it is created. `space`: the memory for its events."""
        self._tenant = tenant
        self._created = created
        self.log = EventLog(created, space)
        self._store: Responses | None = None
        self._event_writer: EventWriter | None = None
        self._running: RunningResponse | None = None
        """How the events get into PostgreSQL. None for a turn that is not stored."""
        self.is_ending = False
        """All events are generated; the end is being stored."""
        self.is_replaced = False
        """PostgreSQL has another end of the response than the one that was generated here, and clients see that one."""
        self._is_stored = False
        """PostgreSQL has the response as it was generated here."""

    @property
    def is_kept(self) -> bool:
        """Whether the turn is stored in PostgreSQL."""
        return self._running is not None

    def keep(self, store: Responses, event_writer: EventWriter, running: RunningResponse) -> None:
        """Store the events from now on. The store has admitted the turn."""
        self._store, self._event_writer, self._running = store, event_writer, running
        event_writer.add(running)

    def add(self, events: list[Event]) -> None:
        self.log.add(events)
        if self._running is None or self._event_writer is None:
            self.log.release(len(self.log))
        else:
            self._event_writer.write_soon(self._running)

    async def finish(self, last: list[Event], response: dict[str, Any] | None) -> None:
        """Store the end before clients see it, unless PostgreSQL is away. `last`: the last events. `response`: the
        response at its end; None if the turn was refused, so that nothing is left of it.
        """
        self.is_ending = True
        self.log.add(last)
        if self._running is None:
            return
        self._running.is_ending = True
        late = asyncio.get_running_loop().call_later(PATIENCE_S, self.log.end)
        until = time.monotonic() + FINISH_WITHIN_S
        try:
            while not await self._is_written(response):
                self.log.end()
                if time.monotonic() > until:
                    raise StateUnavailable(f"PostgreSQL has been away for {FINISH_WITHIN_S:g} s", FINISH_RETRY_S)
                await asyncio.sleep(FINISH_RETRY_S)
        except Exception:
            logger.exception("the end of response %s is lost", self._created["id"])
        finally:
            late.cancel()

    def close(self) -> None:
        """End the wait of all readers, and give the memory back."""
        self.log.end()
        self.log.forget()
        if self._running is not None and self._event_writer is not None:
            self._event_writer.forget(self._running)

    async def publish_end(self) -> None:
        """Show the end to clients that read the response from other replicas."""
        if self._is_stored and self._running is not None and self._event_writer is not None:
            await self._event_writer.publish_end(self._running)

    async def _is_written(self, response: dict[str, Any] | None) -> bool:
        """False while PostgreSQL is away."""
        assert self._store is not None
        try:
            if response is None:
                await self._store.withdraw(self._tenant, self._created["id"])
                return True
            ending = Ending.of(response, self._created, self.log.since(0))
            written = await self._store.finish(self._tenant, ending)
        except StateUnavailable:
            return False
        self._is_stored = written is ending.lines
        if written and not self._is_stored:  # nothing is written if the response was deleted meanwhile
            self.is_replaced = self.log.settle(written)
        return True

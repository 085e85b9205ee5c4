"""What a response has told so far: kept from its first event on, for any number of clients to read."""

import asyncio
import math
from collections.abc import AsyncGenerator

import msgspec

from api.responses.events import Event


class EventLog:
    """Event number N is at place N. Clients see it when it is released."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._num_released = 0
        self._is_over = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: list[Event]) -> None:
        self._events += [msgspec.json.encode(event) for event in events]

    def since(self, number: int, max_bytes: float = math.inf) -> list[bytes]:
        """From this event on, as JSON; no more than so many bytes, but for the first."""
        events: list[bytes] = []
        for event in self._events[number:]:
            max_bytes -= len(event)
            if events and max_bytes < 0:
                break
            events.append(event)
        return events

    def settle(self, events: list[bytes]) -> None:
        """These are remembered of it in the end: they are told, where nothing else has been told already."""
        released = self._events[: self._num_released]
        if len(events) > len(released) and events[: len(released)] == released:
            self._events = events

    def release(self, number: int) -> None:
        """All events before this one."""
        if number > self._num_released:
            self._num_released = number
            self._wake()

    def end(self) -> None:
        """Release all that is there; there will be no more."""
        self._num_released = len(self._events)
        self._is_over = True
        self._wake()

    async def read(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The released events after this one as JSON, until there are no more."""
        number = after + 1
        while True:
            changed = self._changed
            while number < self._num_released:
                yield self._events[number]
                number += 1
            if self._is_over:
                return
            await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

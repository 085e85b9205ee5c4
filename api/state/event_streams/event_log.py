"""The event log of a running response: all of its events in memory, for any number of clients to read."""

import asyncio
import math
from collections.abc import AsyncGenerator

from api.wire.responses.events import Body, Event
from api.wire.responses.short_events import EventRestorer, Line, shortened


class LogSpace:
    """The memory that the event logs of a replica share."""

    def __init__(self, most: int, most_of_one: int) -> None:
        """`most`, `most_of_one`: the bytes that all logs together, and one log, may take."""
        self._most = most
        self._most_of_one = most_of_one
        self._logs: dict[EventLog, int] = {}
        self.used = 0

    def take(self, log: "EventLog", num_bytes: int) -> None:
        """Count bytes of a log. A log that is too large becomes full. If all logs together are too large, the largest
        one becomes full.
        """
        self.used += num_bytes
        self._logs[log] = self._logs.get(log, 0) + num_bytes
        if self._logs[log] > self._most_of_one:
            log.is_full = True
        if self.used > self._most:
            largest = max(self._logs, key=self._logs.__getitem__)
            largest.is_full = True

    def give_back(self, log: "EventLog") -> None:
        """Give back all bytes of a log."""
        self.used -= self._logs.pop(log, 0)


class EventLog:
    """Event number N is at place N. Clients see an event when it is released."""

    def __init__(self, created: Body, space: LogSpace) -> None:
        """`created`: the response as it is created, without output. It must not be changed later."""
        self._created = created
        self._space = space
        self._lines: list[Line] = []
        self._num_released = 0
        self._is_over = False
        self._changed = asyncio.Event()
        self.is_full = False
        """Whether the response must end, because its log has no room for more events."""

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, events: list[Event]) -> None:
        lines = [shortened(event, self._created) for event in events]
        self._lines += lines
        self._space.take(self, sum(map(len, lines)))

    def since(self, number: int, max_bytes: float = math.inf) -> list[Line]:
        """The events from event `number` on. They have at most `max_bytes`, unless the first event is larger."""
        lines: list[Line] = []
        for line in self._lines[number:]:
            max_bytes -= len(line)
            if lines and max_bytes < 0:
                break
            lines.append(line)
        return lines

    def settle(self, lines: list[Line]) -> bool:
        """Replace the events by these, which are stored in the end. Returns False if clients have already seen other
        events, or all of these: the log then stays as it is.
        """
        released = self._lines[: self._num_released]
        is_open = len(lines) > len(released) and lines[: len(released)] == released
        if is_open:
            self._lines = lines
        return is_open

    def release(self, number: int) -> None:
        """Release all events before event `number`."""
        if number > self._num_released:
            self._num_released = number
            self._wake()

    def end(self) -> None:
        """Release all events. No event may be added after this."""
        self._num_released = len(self._lines)
        self._is_over = True
        self._wake()

    async def over(self) -> None:
        """Wait until the log has ended."""
        while not self._is_over:
            await self._changed.wait()

    def forget(self) -> None:
        """Give the memory of the log back to its space. Clients that still read the log keep it until they are done."""
        self._space.give_back(self)

    async def read(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The released events after event `after` as JSON, until the log has ended. A client that has seen more events
        than the log has gets the last one again.
        """
        number, event, restorer = 0, b"", EventRestorer(self._created)
        while True:
            changed = self._changed
            while number < self._num_released:
                line = self._lines[number]
                event = (
                    await asyncio.to_thread(restorer.in_full, line)
                    if restorer.is_long(line)
                    else restorer.in_full(line)
                )
                if number > after:
                    yield event
                number += 1
            if self._is_over:
                break
            await changed.wait()
        if 0 < number <= after + 1:
            yield event

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

"""What a response has told so far: kept from its first event on, for any number of clients to read."""

import asyncio
import math
from collections.abc import AsyncGenerator

from api.wire.responses.events import Body, Event
from api.wire.responses.short_events import Line, Retelling, shortened


class LogSpace:
    """The memory that the logs of a replica share."""

    def __init__(self, most: int, most_of_one: int) -> None:
        """Bytes. `most_of_one`: of one log."""
        self._most = most
        self._most_of_one = most_of_one
        self._logs: dict[EventLog, int] = {}
        self.used = 0

    def take(self, log: "EventLog", num_bytes: int) -> None:
        """A log that is too large is full, and so is the largest one when all of them are too large together."""
        self.used += num_bytes
        self._logs[log] = self._logs.get(log, 0) + num_bytes
        if self._logs[log] > self._most_of_one:
            log.is_full = True
        if self.used > self._most:
            largest = max(self._logs, key=self._logs.__getitem__)
            largest.is_full = True

    def give_back(self, log: "EventLog") -> None:
        """All that it has taken."""
        self.used -= self._logs.pop(log, 0)


class EventLog:
    """Event number N is at place N. Clients see it when it is released."""

    def __init__(self, created: Body, space: LogSpace) -> None:
        """`created`: the response, which is not to be changed, without output."""
        self._created = created
        self._space = space
        self._lines: list[Line] = []
        self._num_released = 0
        self._is_over = False
        self._changed = asyncio.Event()
        self.is_full = False
        """Its response is to say no more."""

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, events: list[Event]) -> None:
        lines = [shortened(event, self._created) for event in events]
        self._lines += lines
        self._space.take(self, sum(map(len, lines)))

    def since(self, number: int, max_bytes: float = math.inf) -> list[Line]:
        """From this event on; no more than so many bytes, but for the first."""
        lines: list[Line] = []
        for line in self._lines[number:]:
            max_bytes -= len(line)
            if lines and max_bytes < 0:
                break
            lines.append(line)
        return lines

    def settle(self, lines: list[Line]) -> bool:
        """These are remembered of it in the end: they are told, where nothing else has been told already. Whether they
        are.
        """
        released = self._lines[: self._num_released]
        is_open = len(lines) > len(released) and lines[: len(released)] == released
        if is_open:
            self._lines = lines
        return is_open

    def release(self, number: int) -> None:
        """All events before this one."""
        if number > self._num_released:
            self._num_released = number
            self._wake()

    def end(self) -> None:
        """Release all that is there; there will be no more."""
        self._num_released = len(self._lines)
        self._is_over = True
        self._wake()

    async def over(self) -> None:
        """Returns when there will be no more."""
        while not self._is_over:
            await self._changed.wait()

    def forget(self) -> None:
        """Nobody adds to it any more, and who still reads it is the last."""
        self._space.give_back(self)

    async def read(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The released events after this one as JSON, until there are no more; the last one in any case."""
        number, told, retelling = 0, b"", Retelling(self._created)
        while True:
            changed = self._changed
            while number < self._num_released:
                line = self._lines[number]
                told = (
                    await asyncio.to_thread(retelling.told, line) if retelling.is_long(line) else retelling.told(line)
                )
                if number > after:
                    yield told
                number += 1
            if self._is_over:
                break
            await changed.wait()
        if 0 < number <= after + 1:
            yield told

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

"""Puts a workload on an endpoint: in an open loop at the times of its rows, or in a closed loop with so many users.

In an open loop each request is sent when it is due, whatever has become of the others. In a closed loop each user takes
the next session and sends its turns one after another, without think times.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import msgspec

from cluster.load.lateness import Lateness
from cluster.load.record import MAX_OPEN, GeneratorFigures, LoadEnding, LoadRecord
from cluster.load.sender import Sender
from cluster.load.workload import Session
from cluster.simulation.traffic.workload import Arrival


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a load has come to."""

    records: list[LoadRecord]
    """In the order in which the requests ended."""
    generator: GeneratorFigures
    duration_s: float
    """From the start of the load to the end of its last request."""


class Progress(msgspec.Struct):
    """What a view may show while the load runs."""

    num_planned: int | None = None
    """None if the load ends by time."""
    num_sent: int = 0
    num_open: int = 0


class Generator:
    def __init__(self, sender: Sender, on_record: Callable[[LoadRecord], None], progress: Progress) -> None:
        self._sender, self._on_record, self._progress = sender, on_record, progress
        self._records: list[LoadRecord] = []
        self._open: set[asyncio.Task[Any]] = set()
        self._lateness = Lateness()
        self._loop_task: asyncio.Task[None] | None = None

    async def open_loop(self, rows: Iterable[Arrival], max_open: int = MAX_OPEN) -> Sent:
        """Send each row at its time."""
        return await self._run(self._send_when_due(rows, asyncio.Semaphore(max_open)))

    async def closed_loop(
        self, sessions: Iterator[Session], num_users: int, number: int | None = None, duration_s: float | None = None
    ) -> Sent:
        """Send the sessions' requests by so many users at a time, until `number` have been sent or the time is over.
        Requests that are open then are waited for.
        """
        return await self._run(self._send_in_turn(sessions, num_users, number, duration_s))

    def stop(self) -> None:
        """Send no more, and give up what is open."""
        if self._loop_task is not None:
            self._loop_task.cancel()
        for task in self._open:
            task.cancel()

    async def _run(self, loop: Coroutine[Any, Any, None]) -> Sent:
        self._started = time.perf_counter()
        self._lateness.start()
        self._loop_task = asyncio.create_task(loop)
        await asyncio.wait([self._loop_task])
        if not self._loop_task.cancelled():
            self._loop_task.result()
        while self._open:
            await asyncio.wait(set(self._open))
        generator = self._lateness.stop()
        return Sent(records=self._records, generator=generator, duration_s=time.perf_counter() - self._started)

    async def _send_when_due(self, rows: Iterable[Arrival], room: asyncio.Semaphore) -> None:
        for number, row in enumerate(rows):
            request = self._sender.encoded(row)  # before it is due
            due = self._started + row.arrival_s
            await asyncio.sleep(due - time.perf_counter())
            await room.acquire()
            task = asyncio.create_task(self._send(number, row, request, due))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            task.add_done_callback(lambda _: room.release())

    async def _send_in_turn(
        self, sessions: Iterator[Session], num_users: int, number: int | None, duration_s: float | None
    ) -> None:
        numbers = itertools.count() if number is None else iter(range(number))
        ends_at = math.inf if duration_s is None else self._started + duration_s
        users = [asyncio.create_task(self._use(sessions, numbers, ends_at)) for _ in range(num_users)]
        self._open.update(users)
        try:
            await asyncio.gather(*users)
        finally:
            self._open.difference_update(users)

    async def _use(self, sessions: Iterator[Session], numbers: Iterator[int], ends_at: float) -> None:
        for session in sessions:
            for row in session:
                request = self._sender.encoded(row)
                if (due := time.perf_counter()) >= ends_at or (number := next(numbers, None)) is None:
                    return
                if not await self._send(number, row, request, due):
                    return

    async def _send(self, number: int, row: Arrival, request: bytes, due: float) -> bool:
        """Returns whether the load goes on."""
        progress = self._progress
        progress.num_sent += 1
        progress.num_open += 1
        self._lateness.opened(progress.num_open)
        record = await self._sender.send(number, row, request, due, self._started)
        progress.num_open -= 1
        self._records.append(record)
        self._on_record(record)
        return record.ending is not LoadEnding.STOPPED

"""Events reach the Scheduler in order, soon, and in few messages, on a virtual clock."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from cluster.clients.event_sender import GATHER_S, EventSender
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.scheduler_events import Events, FirstToken, SchedulerEvent, WorkerLost
from cluster.rpc.connection import Connection, ConnectionLost
from cluster.simulation.clock import VirtualLoop


class Recorder:
    """A connection that notes what is posted, and when."""

    def __init__(self) -> None:
        self.posted: list[tuple[float, int, int]] = []
        """Time, number of the first event, and number of events."""
        self.is_lost = False

    def post(self, _: object, message: Events) -> None:
        if self.is_lost:
            raise ConnectionLost("gone")
        self.posted.append((asyncio.get_running_loop().time(), message.first, len(message.events)))


def numbered(number: int, event: SchedulerEvent | None = None) -> Events:
    return Events(number, [event or FirstToken(request_id=RequestId(f"r{number}"))])


def connected(sender: EventSender, kept: list[Events] | None = None) -> Recorder:
    recorder = Recorder()
    sender.connected(cast(Connection, recorder), kept or [])
    return recorder


def on_virtual_loop(test: Coroutine[Any, Any, None]) -> None:
    VirtualLoop().run(test)


def test_event_that_comes_alone_is_sent_at_once_and_those_after_it_together() -> None:
    async def run() -> None:
        sender = EventSender()
        recorder = connected(sender)
        for number in range(1, 5):
            sender.send(numbered(number))
        assert recorder.posted == [(0.0, 1, 1)]
        await asyncio.sleep(2 * GATHER_S)
        assert recorder.posted == [(0.0, 1, 1), (GATHER_S, 2, 3)]
        sender.send(numbered(5))
        assert recorder.posted[2:] == [(2 * GATHER_S, 5, 1)]

    on_virtual_loop(run())


def test_lost_worker_is_told_at_once_with_all_events_before_it() -> None:
    async def run() -> None:
        sender = EventSender()
        recorder = connected(sender)
        for number in (1, 2):
            sender.send(numbered(number))
        sender.send(numbered(3, WorkerLost(worker=WorkerId("d0"))))
        assert recorder.posted == [(0.0, 1, 1), (0.0, 2, 2)]
        await asyncio.sleep(1.0)
        assert len(recorder.posted) == 2, "nothing is sent twice"

    on_virtual_loop(run())


def test_new_connection_gets_what_was_kept_and_not_what_was_gathered_for_the_old_one() -> None:
    async def run() -> None:
        sender = EventSender()
        old = connected(sender)
        for number in (1, 2):
            sender.send(numbered(number))
        old.is_lost = True
        sender.disconnected()
        sender.send(numbered(3))
        new = connected(sender, [numbered(1), numbered(3), numbered(4)])
        await asyncio.sleep(1.0)
        assert new.posted == [(0.0, 1, 1), (0.0, 3, 2)], "numbers say which events follow one another"

    on_virtual_loop(run())


def test_connection_that_breaks_while_events_are_gathered_does_no_harm() -> None:
    async def run() -> None:
        sender = EventSender()
        recorder = connected(sender)
        for number in (1, 2):
            sender.send(numbered(number))
        recorder.is_lost = True
        await asyncio.sleep(1.0)
        assert recorder.posted == [(0.0, 1, 1)]

    on_virtual_loop(run())

"""EventSender: sends the events of an ingress to the Scheduler, and gathers those that come soon after one another.

A message costs the Scheduler some ten times as much as an event in it. An event that comes alone is sent at once.
"""

import asyncio
from contextlib import suppress
from typing import Final

from cluster.messages.scheduler_events import Events, FirstToken, PrefillDone, RequestClosed
from cluster.rpc.connection import Connection, ConnectionLost
from cluster.rpc.protocol import EVENTS

GATHER_S: Final = 0.005
"""Least time between two messages of events that only say how far requests have come, in seconds. Longer tells the
Scheduler later of room; shorter costs it more messages.
"""
_CAN_WAIT: Final = (PrefillDone, FirstToken, RequestClosed)


class EventSender:
    """The messages of the outbox (cluster/clients/scheduler_outbox.py), in order. What cannot be sent is dropped here:
    the outbox keeps it.
    """

    def __init__(self) -> None:
        self.connection: Connection | None = None
        """None while the Scheduler is away."""
        self._gathered: list[Events] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = float("-inf")

    def connected(self, connection: Connection, kept: list[Events]) -> None:
        """`kept`: all events that the Scheduler may not have, those that wait here among them."""
        self.connection = connection
        self._gathered = kept
        self.send_now()

    def disconnected(self) -> None:
        self.connection = None
        self._gathered = []

    def send(self, message: Events) -> None:
        if self.connection is None:
            return
        self._gathered.append(message)
        if not all(isinstance(event, _CAN_WAIT) for event in message.events):
            self.send_now()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            wait_s = self._sent_at + GATHER_S - loop.time()
            if wait_s <= 0.0:
                self.send_now()
            else:
                self._timer = loop.call_later(wait_s, self.send_now)

    def send_now(self) -> None:
        """Send what has been gathered: before a message that it must not come after."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, []
        if self.connection is None or not gathered:
            return
        self._sent_at = asyncio.get_running_loop().time()
        with suppress(ConnectionLost):
            for message in _joined(gathered):
                self.connection.post(EVENTS, message)


def _joined(several: list[Events]) -> list[Events]:
    """Messages whose events follow one another become one."""
    joined: list[Events] = []
    for message in several:
        last = joined[-1] if joined else None
        if last is not None and message.first == last.first + len(last.events):
            last.events.extend(message.events)
        else:
            joined.append(Events(message.first, list(message.events)))
    return joined

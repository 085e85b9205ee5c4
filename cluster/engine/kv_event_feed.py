"""A worker's KV events: read from its engine over ZeroMQ, kept as a mirror, sent on to the Scheduler.

The engine publishes on sockets in a private folder. It numbers its batches and keeps the last ones, so that it can
replay batches that were lost on the way. The names of the sockets are removed once they are connected, so processes
leave nothing behind, however they end.
"""

import asyncio
import logging
import shutil
import tempfile
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import zmq

from cluster.engine.kv_mirror import EventBatch, EventOrder, KvMirror
from cluster.engine.port import KvEventSource
from cluster.errors import ServingError
from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.unreadable import UNREADABLE

logger = logging.getLogger("baton.kv_events")

INTERVAL_S = 0.03
"""Seconds between two looks at the engine's events, after a look that found some. Longer makes the Scheduler's picture
of the caches older; shorter sends more messages.
"""
IDLE_INTERVAL_S = 0.24
"""Most seconds between two looks: the time doubles after each look that finds nothing. Longer tells the Scheduler later
of the first change after a pause; shorter wakes an idle worker more often.
"""
REPLAY_TIMEOUT_S = 5.0
"""Seconds to wait for a replay, which the engine looks for ten times a second. Longer keeps later batches waiting for a
replay that never comes; shorter gives up batches of an engine in a long step.
"""
SUBSCRIBED_WITHIN_S = 1.0
"""Seconds after connecting in which a batch may be missed: ZeroMQ may not have subscribed yet, and the first replay may
have ended before the batch was published. Shorter may miss batches; longer only delays the replay that finds them.
"""
REPLAYED_BATCHES = 10_000
"""Batches that the engine keeps for replays: some minutes of steps. Fewer loses batches when the worker is slow; more
takes memory of the engine.
"""
MAX_BATCHES_AT_ONCE = 1000
"""Batches that are read before the event loop may run. More delays tokens; fewer lets a burst of events wait."""

_END_OF_REPLAY = -1

_decode = msgspec.msgpack.Decoder(EventBatch).decode


class KvEventSockets:
    """The sockets on which an engine publishes, and the worker's end of them."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="baton-kv-")
        self.remove_names = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        """Removes the names of the sockets, which connected sockets do not need."""
        self.arguments: dict[str, Any] = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"ipc://{folder}/events",
            "replay_endpoint": f"ipc://{folder}/replay",
            "buffer_steps": REPLAYED_BATCHES,
        }
        """Arguments of vLLM's KVEventsConfig."""
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def connect(self) -> None:
        """Connect to the engine, which has started."""
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._replay = self._context.socket(zmq.DEALER)
        self._events.subscribe(b"")
        self._events.connect(self.arguments["endpoint"])
        self._replay.connect(self.arguments["replay_endpoint"])

    def ask_for_replay(self, first: int) -> None:
        self._replay.send_multipart([b"", first.to_bytes(8, "big")])

    def event(self) -> tuple[int, bytes] | None:
        """The next batch and its number. None if no batch waits."""
        with suppress(zmq.Again):
            _, number, batch = self._events.recv_multipart(zmq.NOBLOCK)
            return int.from_bytes(number, "big"), batch
        return None

    def replayed(self) -> tuple[int, bytes] | None:
        """The next batch of a replay, which ends with the number -1. None if no batch waits."""
        with suppress(zmq.Again):
            _, _, number, batch = self._replay.recv_multipart(zmq.NOBLOCK)
            return int.from_bytes(number, "big", signed=True), batch
        return None

    def close(self) -> None:
        self.remove_names()
        if self._context is not None:
            self._context.destroy(linger=0)


class KvEventFeed:
    """Carries one worker's events from its engine to the Scheduler."""

    def __init__(
        self, worker: WorkerId, source: KvEventSource, send: Callable[[list[KvEvents]], Awaitable[None]]
    ) -> None:
        """`send` raises ServingError if the Scheduler cannot be reached."""
        self._worker = worker
        self._source = source
        self._send = send
        self.mirror = KvMirror(worker)
        self.every_s = 0.0
        """Least time between two messages, in seconds, as the Scheduler wants it: its workers share its time."""
        self._is_held = False
        """Nothing is sent before the Scheduler asks for a snapshot."""
        self._order: EventOrder[bytes] = EventOrder()
        self._replay_until: float | None = None
        """Time until which a replay is waited for. None if no replay has been asked for."""
        self._replay_from: int | None = None
        """First batch of the gap that the replay must fill. None if no gap was known when the replay was asked for."""
        self._subscribed_at: float | None = None
        """Time before which batches may have been missed. None once a replay of them has been asked for."""

    async def run(self) -> None:
        self._source.connect()
        self._subscribed_at = asyncio.get_running_loop().time() + SUBSCRIBED_WITHIN_S
        # For all that was published before the connection. The end of the replay proves that the connection is made
        self._ask_for_replay(0, None)
        interval_s = INTERVAL_S
        while True:
            self.read()
            messages = [] if self._is_held else self.mirror.take()
            interval_s = pause_s(interval_s, has_found=bool(messages))
            if messages:
                try:
                    await self._send(messages)
                except ServingError as error:
                    logger.info("KV events did not reach the Scheduler: %s", error)
                    self._hold()
            await asyncio.sleep(max(interval_s, self.every_s))

    def send_snapshot(self) -> None:
        """The Scheduler asks for a snapshot."""
        self._is_held = False
        self.mirror.want_snapshot()

    def read(self) -> None:
        """Take all batches that have come from the engine."""
        for _ in range(MAX_BATCHES_AT_ONCE):
            if (event := self._source.event()) is None:
                break
            self._apply(self._order.take(*event))
        self._read_replay()
        now = asyncio.get_running_loop().time()
        if self._replay_until is None:
            if (first := self._order.missing_from) is not None:
                self._ask_for_replay(first, first)
            elif self._subscribed_at is not None and now >= self._subscribed_at:
                self._subscribed_at = None
                self._ask_for_replay(self._order.next, None)
        elif now > self._replay_until or self._order.is_hopeless:
            self._replay_until = None
            self._lose()

    def _hold(self) -> None:
        """Messages did not reach the Scheduler. It asks for a snapshot when a report has told it of a message that it
        does not have. Until then nothing is sent, so that a Scheduler that was restarted does not get the snapshots of
        all workers at once.
        """
        self._is_held = True
        self.mirror.want_snapshot()
        self.mirror.sent_through += 1

    def _ask_for_replay(self, first: int, gap: int | None) -> None:
        self._source.ask_for_replay(first)
        self._replay_from = gap
        self._replay_until = asyncio.get_running_loop().time() + REPLAY_TIMEOUT_S

    def _read_replay(self) -> None:
        while (event := self._source.replayed()) is not None:
            number, batch = event
            if number == _END_OF_REPLAY:
                self._source.remove_names()
                self._replay_until = None
                if self._replay_from is not None and self._order.missing_from == self._replay_from:
                    self._lose()  # the engine no longer keeps these batches
            else:
                self._apply(self._order.take(number, batch))

    def _lose(self) -> None:
        if (first := self._order.missing_from) is not None:
            logger.warning(
                "KV events of worker %s are lost from number %d on: what is known of its caches is a guess from now on",
                self._worker,
                first,
            )
            self._apply(self._order.give_up())
            self.mirror.lose()

    def _apply(self, batches: list[bytes]) -> None:
        for batch in batches:
            try:
                self.mirror.apply(_decode(batch))
            except UNREADABLE as error:
                logger.warning("KV events of worker %s cannot be read: %s", self._worker, error)
                self.mirror.lose()


def pause_s(last_s: float, *, has_found: bool) -> float:
    """Seconds until the next look. `last_s`: before this one, which has found something or not."""
    return INTERVAL_S if has_found else min(2 * last_s, IDLE_INTERVAL_S)

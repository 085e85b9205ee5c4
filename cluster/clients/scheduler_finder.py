"""SchedulerFinder: finds the newest Scheduler in the registry (cluster/scheduler_registry.py)."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from cluster.rpc.connection import ConnectionLost
from cluster.scheduler_registry import SchedulerRecord

logger = logging.getLogger("baton.scheduling")

READ_TIMEOUT_S = 2.0
"""Time that the registry has for an answer, in seconds. Then the Scheduler that was found last is taken. Longer delays
callers while the registry's store is away; shorter misses a new Scheduler while the store is slow.
"""


class SchedulerFinder:
    def __init__(self, read: Callable[[], SchedulerRecord | None]) -> None:
        """`read` reads the registry. It may block, so it runs in a thread, one call at a time."""
        self._read = read
        self._reading: asyncio.Future[SchedulerRecord | None] | None = None
        self._newest: SchedulerRecord | None = None
        self._is_away = False
        """The last read has failed."""

    async def newest(self) -> SchedulerRecord:
        """The Scheduler with the highest epoch that this process has found. While the registry cannot be read, this is
        the one that was found last. Raises ConnectionLost if none was found.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
            self._reading.add_done_callback(self._has_read)
        with suppress(Exception):  # `_has_read` logs it
            async with asyncio.timeout(READ_TIMEOUT_S):
                await asyncio.shield(self._reading)
        if self._newest is None:
            raise ConnectionLost("there is no Scheduler")
        return self._newest

    def _has_read(self, reading: asyncio.Future[SchedulerRecord | None]) -> None:
        self._reading = None
        if reading.cancelled():
            return
        error = reading.exception()
        if error is not None and not self._is_away:
            logger.warning("the registry of Schedulers cannot be read: %r", error)
        self._is_away = error is not None
        found = reading.result() if error is None else None
        if found is not None and (self._newest is None or found.epoch > self._newest.epoch):
            self._newest = found

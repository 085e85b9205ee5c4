"""A worker tells its engine which conversations wait for tools, as ingress replicas tell the worker.

The engine is told of one after the other. Of too many that wait, the oldest are dropped, which costs hits at most.
"""

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from cluster.errors import ServingError
from cluster.messages.retention import ToolWait
from cluster.rpc.connection import Connection, Service
from cluster.rpc.protocol import AWAIT_TOOLS

logger = logging.getLogger("baton.worker")

MOST_WAITING: Final = 256
"""Conversations that the engine is not told of yet. More tells an engine that stood still of what is over; fewer drops
some when many answers end together.
"""


class KeepingEngine(Protocol):
    async def await_tools(self, wait: ToolWait) -> None:
        """Raises ServingError."""
        ...


class ToolWaits:
    def __init__(self, engine: KeepingEngine, service: Service) -> None:
        self._engine = engine
        self._waits: deque[ToolWait] = deque(maxlen=MOST_WAITING)
        self._telling: asyncio.Task[None] | None = None
        service.on_post(AWAIT_TOOLS, self._heard)

    def _heard(self, _: Connection, wait: ToolWait) -> None:
        self._waits.append(wait)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._waits:
            try:
                await self._engine.await_tools(self._waits.popleft())
            except ServingError as error:  # the engine is dead, which the watchdog sees
                logger.debug("the engine was not told of a conversation that waits: %s", error)

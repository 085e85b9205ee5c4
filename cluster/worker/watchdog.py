"""The watchdog of an engine: whether an engine that lives also answers. Requests of an engine that does not answer go
to other workers. The worker of an engine that does not answer for long is replaced.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cluster.engine.port import WatchedEngine
from cluster.errors import WorkerUnreachable
from cluster.messages.ids import WorkerId

logger = logging.getLogger("baton.worker")

ASK_INTERVAL_S = 1.0
"""Seconds between two questions to the engine. Longer notices a stall later; shorter costs the engine time between its
steps.
"""
HANG_STALLS = 4
"""Stall timeouts without an answer after which the engine is given up. Fewer replaces engines that would have
recovered; more keeps a dead one for longer.
"""
HEALTH_INTERVAL_S = 0.1
"""Seconds between two looks at the health of an engine that is asked for an answer. Longer notices its death later;
shorter costs CPU.
"""


async def show_life(engine: WatchedEngine, stall_timeout_s: float, worker: WorkerId) -> None:
    """Return when the engine has answered. Raises WorkerUnreachable if the engine is dead or hangs."""
    answer = asyncio.ensure_future(engine.answer())
    try:
        async with asyncio.timeout(stall_timeout_s):
            while not answer.done():  # if its engine core dies meanwhile, vLLM never answers
                await engine.check_health()
                await asyncio.wait([answer], timeout=HEALTH_INTERVAL_S)
            await answer
    except Exception as error:
        raise WorkerUnreachable(f"the engine of worker {worker} does not answer: {error!r}", worker) from error
    finally:
        answer.cancel()


class Watchdog:
    """Asks the engine for an answer, again and again, and gives up its requests while it does not answer."""

    def __init__(self, engine: WatchedEngine, stall_timeout_s: float, on_stall: Callable[[], Awaitable[None]]) -> None:
        """`stall_timeout_s` must be longer than the engine's longest step; `on_stall` is awaited once per stall."""
        self._engine = engine
        self._stall_timeout_s = stall_timeout_s
        self._on_stall = on_stall
        self.is_stalled = False

    async def run(self) -> None:
        """Never returns. Raises TimeoutError if the engine hangs for good."""
        while True:
            answer = asyncio.ensure_future(self._engine.answer())
            try:
                await self._wait(answer)
            finally:
                answer.cancel()
            await asyncio.sleep(ASK_INTERVAL_S)

    async def _wait(self, answer: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await asyncio.shield(answer)
            return
        except TimeoutError:
            logger.error("the engine has not answered for %g s: its requests go elsewhere", self._stall_timeout_s)
        self.is_stalled = True
        await self._on_stall()
        async with asyncio.timeout((HANG_STALLS - 1) * self._stall_timeout_s):
            while not answer.done():
                await self._engine.give_up_running()  # again, for requests that have come since
                await asyncio.wait([answer], timeout=ASK_INTERVAL_S)
        await answer
        self.is_stalled = False
        logger.warning("the engine answers again")

"""Links: which prefill workers a decode worker has proved a hand-over with.

The first pull between two engines makes their connection, which takes seconds, and no request should pay for it. So a
link counts only once a real hand-over over it has worked; until then the pair gets no requests. A failed attempt is
repeated when the prefill worker is next seen alive.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cluster.errors import ServingError
from cluster.types import WorkerId

logger = logging.getLogger("baton.links")

PROOF_TIMEOUT_S = 60.0
"""vLLM's pull has no timeout of its own: without one, a prefill worker that hangs once would never be tried again."""


class Links:
    def __init__(self, prove: Callable[[WorkerId], Awaitable[None]]) -> None:
        """`prove` makes a hand-over from the given prefill worker, and raises ServingError when it fails."""
        self._prove = prove
        self._connected: frozenset[WorkerId] = frozenset()
        self._proving: dict[WorkerId, asyncio.Task[None]] = {}

    @property
    def connected(self) -> frozenset[WorkerId]:
        return self._connected

    def update(self, live: frozenset[WorkerId]) -> None:
        """Forget workers that are gone and start proving the links to new ones."""
        self._connected &= live
        for worker in live - self._connected - self._proving.keys():
            self._proving[worker] = asyncio.create_task(self._connect(worker))

    def suspect(self, worker: WorkerId) -> None:
        """A pull from this worker hung: it must prove its link anew."""
        self._connected -= {worker}

    async def _connect(self, worker: WorkerId) -> None:
        try:
            async with asyncio.timeout(PROOF_TIMEOUT_S):
                await self._prove(worker)
        except (ServingError, TimeoutError) as error:
            logger.warning("no link to prefill worker %s yet: %s", worker, error)
        else:
            self._connected |= {worker}
        finally:
            del self._proving[worker]

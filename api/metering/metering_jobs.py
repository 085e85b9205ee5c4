"""The background jobs of metering in one ingress process. Each has a task of its own: none waits for another."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from api.metering.publisher import OutboxJob
from api.metering.upkeep import LedgerUpkeep
from cluster.ending import end_tasks
from cluster.errors import StateUnavailable

logger = logging.getLogger("baton.metering")

UPKEEP_INTERVAL_S = 60.0
"""The time between two runs of the upkeep, in seconds. Shorter costs PostgreSQL more; longer shows lost requests as
running for longer.
"""
PUBLISH_INTERVAL_S = 1.0
"""The time between two looks into the outbox, in seconds. Shorter costs PostgreSQL more; longer publishes later."""
RECONCILE_INTERVAL_S = 600.0
"""The time between two reconciliations, in seconds. Shorter sums the ledger up more often; longer leaves a wrong budget
wrong for longer. A difference is corrected by the second run that finds it.
"""


class MeteringJobs:
    def __init__(
        self, upkeep: LedgerUpkeep, reconcile: Callable[[], Awaitable[object]], outbox: OutboxJob | None
    ) -> None:
        """`reconcile`: compares once (api/metering/reconciliation.py). `outbox`: None if rows are not published."""
        self._jobs: list[tuple[Callable[[], Awaitable[object]], float, float]] = [
            (upkeep.run, UPKEEP_INTERVAL_S, 0.0),
            (reconcile, RECONCILE_INTERVAL_S, RECONCILE_INTERVAL_S),  # workers have not started yet
        ]
        self._outbox = outbox
        if outbox is not None:
            self._jobs.append((outbox.run, PUBLISH_INTERVAL_S, 0.0))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(_repeat(*job)) for job in self._jobs]

    async def close(self) -> None:
        await end_tasks(self._tasks)
        if self._outbox is not None:
            await self._outbox.close()


async def _repeat(job: Callable[[], Awaitable[object]], interval_s: float, first_after_s: float) -> None:
    await asyncio.sleep(first_after_s)
    while True:
        try:
            await job()
        except StateUnavailable:
            pass  # the database has logged it
        except Exception:  # every failure may be over at the next run
            logger.exception("a job of metering has failed")
        await asyncio.sleep(interval_s)

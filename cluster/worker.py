"""What both pools' deployments share: start the engine, report to the Scheduler, answer health checks and scrapes."""

import asyncio
import logging
from collections.abc import Callable

from cluster import metrics
from cluster.config import PoolConfig
from cluster.engine import Engine
from cluster.errors import ServingError
from cluster.handles import SchedulerHandle, own_node_ip, own_rank, own_worker_id
from cluster.types import Pool, PromptTokenSources, ReportReply, WorkerId, WorkerReport

logger = logging.getLogger("baton.worker")

REPORT_INTERVAL_S = 1.0


class Worker:
    """One replica of a pool with its engine. Starts the engine, which blocks until it is loaded."""

    def __init__(
        self,
        pool: Pool,
        config: PoolConfig,
        scheduler: SchedulerHandle,
        *,
        connected: Callable[[], frozenset[WorkerId]],
        on_reply: Callable[[ReportReply], None],
    ) -> None:
        """`connected` gives the links to report; `on_reply` takes the Scheduler's answer to each report."""
        self.id = own_worker_id()
        self._pool = pool
        self._scheduler = scheduler
        self._connected = connected
        self._on_reply = on_reply
        self.engine = Engine(
            pool, config, worker=self.id, rank=own_rank(), node_ip=own_node_ip(), on_prompt=self._count_prompt
        )
        self._reporting = asyncio.create_task(self._report_forever())

    async def check_health(self) -> None:
        """Raises when the engine is dead or the reports have ended, so that Serve replaces this replica."""
        await self.engine.check_health()
        if self._reporting.done():
            raise RuntimeError("this worker no longer reports to the Scheduler")

    def scrape(self) -> metrics.Scrape:
        return metrics.scrape(self._pool, self.id)

    def shutdown(self) -> None:
        self._reporting.cancel()
        self.engine.shutdown()

    def _count_prompt(self, sources: PromptTokenSources) -> None:
        for source in ("computed", "local", "pulled"):
            metrics.PROMPT_TOKENS.labels(self._pool, source).inc(getattr(sources, source))

    async def _report_forever(self) -> None:
        """Ends when the engine dies: a worker that cannot serve must not be placed on."""
        while True:
            await self.engine.check_health()
            report = WorkerReport(worker=self.id, pool=self._pool, load=self.engine.load(), connected=self._connected())
            try:
                self._on_reply(await self._scheduler.report(report))
            except ServingError as error:
                logger.warning("report not delivered, the next one is due in %.0f s: %s", REPORT_INTERVAL_S, error)
            await asyncio.sleep(REPORT_INTERVAL_S)

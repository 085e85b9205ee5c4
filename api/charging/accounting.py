"""The limits and the ledger of one ingress replica, from its start to its close."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from api.charging.charging import Charging
from api.charging.spent import LedgerSpent
from api.limits.redis_budgets import RedisBudgets
from api.limits.reservations import Reservations
from api.metering.engine_counts import engine_counts
from api.metering.meter import Meter
from api.metering.metering_jobs import MeteringJobs
from api.metering.prices import PriceList, price_list
from api.metering.publisher import OutboxJob, StreamPublisher
from api.metering.reconciliation import Reconciliation
from api.metering.recorder import UsageRecorder
from api.metering.tenant_counts import TenantCounts
from api.metering.upkeep import LedgerUpkeep
from api.state.lifecycle import ChatState
from cluster.config.application import AppConfig
from cluster.errors import InvalidRequest
from cluster.metrics.page import Scrape
from cluster.repository import REPO_ROOT
from router.session.receipt import RequestObserver

SPOOL_FOLDER = "usage"
"""Folder in the data folder of the node, for records of usage that are not written yet."""


class Accounting:
    def __init__(
        self,
        config: AppConfig,
        state: ChatState,
        ingress: str,
        observer: RequestObserver,
        scrapes: Callable[[], Awaitable[list[Scrape]]],
    ) -> None:
        """`ingress`: the id of this process. `observer`: gets what sessions tell. `scrapes`: the metrics of all
        processes.

        Raises ValueError for prices that cannot be read, or of which the served model has none, OSError if the spool
        cannot be written.
        """
        self._state = state
        self._scrapes = scrapes
        self._keep_days = config.metering.keep_days
        self._recorder = UsageRecorder(
            lambda: state.stores.ledger, REPO_ROOT / config.state.data_dir / SPOOL_FOLDER, ingress
        )
        spent = LedgerSpent(lambda: state.stores.usage)
        self._reservations = Reservations(state.limits_redis, config.limits, config.ingress.replicas, spent)
        self._budgets = RedisBudgets(state.limits_redis, state.hashed)
        self._outbox = StreamPublisher(state.redis) if config.metering.publishes else None
        self._meter = Meter(
            self._recorder,
            _prices(config.metering.prices, config.model_name),
            ingress,
            observer,
            TenantCounts(config.metrics.max_tenants) if config.metrics.tenants else None,
        )
        self.charging = Charging(
            config.limits,
            config.model_name,
            meter=self._meter,
            recorder=self._recorder,
            reserver=self._reservations,
            hashed=state.hashed,
        )
        self._jobs: MeteringJobs | None = None
        self._starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._recorder.start()
        self._starting = asyncio.create_task(self._start_jobs())

    async def drained(self, patience_s: float) -> None:
        """Wait until all that has ended is written and settled, but not longer than this for the ledger."""
        self._meter.close_ended()
        await self._recorder.drained(patience_s)
        await self._reservations.settled()

    async def close(self, patience_s: float) -> None:
        """No session may be open. What is not written within this time waits for the next process on this node."""
        if self._starting is not None:
            self._starting.cancel()
            with suppress(asyncio.CancelledError):
                await self._starting
        if self._jobs is not None:
            await self._jobs.close()
        self._meter.close()
        await self._recorder.drained(patience_s)
        await self._recorder.close()
        await self._reservations.close(patience_s)

    async def _start_jobs(self) -> None:
        await self._state.reached()
        jobs = self._state.stores.ledger_jobs
        self._jobs = MeteringJobs(
            LedgerUpkeep(jobs, self._keep_days, lambda: self._recorder.beating_since),
            partial(self._reconcile, Reconciliation(jobs, self._budgets)),
            OutboxJob(jobs, self._outbox) if self._outbox is not None else None,
        )
        self._jobs.start()

    async def _reconcile(self, reconciliation: Reconciliation) -> None:
        """The engines are asked first: what they generate meanwhile is explained by the requests that run."""
        await reconciliation.run(engine_counts(await self._scrapes()))


def _prices(file: str | None, model: str) -> PriceList | None:
    """`model`: the name of the served model. Raises ValueError, also if the model has no price."""
    if file is None:
        return None
    path = Path(REPO_ROOT / file)
    try:
        prices = price_list(path.read_bytes())
    except (OSError, InvalidRequest) as error:
        raise ValueError(f"metering.prices: {path}: {error}") from error
    if why := prices.refusal(model, time.time_ns() // 1_000_000):
        raise ValueError(f"metering.prices: {path}: {why}")
    return prices

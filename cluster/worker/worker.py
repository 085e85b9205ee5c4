"""What both pools' deployments share: start the engine, listen for the other processes, report to the Scheduler, leave
in order.
"""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cluster import metrics
from cluster.clients.scheduler_client import SchedulerClient
from cluster.config.pools import PoolConfig
from cluster.engine.engine import Engine
from cluster.engine.kv_event_feed import KvEventFeed
from cluster.errors import ServingError
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Address, Pool, WorkerId
from cluster.messages.reports import ReportReply, TransferSample, WorkerReport
from cluster.messages.scheduler_events import WorkerLeft
from cluster.messages.transport import LinkSpeed
from cluster.observability.logging import set_up_logging
from cluster.rpc.connection import Service
from cluster.rpc.listener import Listener
from cluster.rpc.protocol import ANSWER
from cluster.serve_context import join_cluster, own_interface_of, own_rank, own_worker_id
from cluster.worker.watchdog import Watchdog, show_life
from kvtransfer.lease import LeaseEnd, LeaseId

logger = logging.getLogger("baton.worker")

REPORT_INTERVAL_S = 0.25
"""What the Scheduler does not hear from the sessions it knows so late. Longer makes its picture of queues, memory and
progress older, shorter costs workers and the Scheduler CPU.
"""
LAST_WORDS_S = 2.0
"""How long before Serve kills a worker that drains what still runs on it goes to other workers, in seconds. Longer cuts
long answers earlier, shorter risks that they are taken for what the worker died of.
"""


class Worker:
    """One replica of a pool with its engine. Making one starts the engine, which blocks until it is loaded."""

    def __init__(self, pool: Pool, config: PoolConfig, host: str | None, scheduler: SchedulerClient) -> None:
        set_up_logging()
        join_cluster()
        self.id = own_worker_id()
        self.service = Service()
        """What the other processes may ask of this worker; filled by its deployment before `start`."""
        self.on_step: Callable[[], None] = _nothing
        """All outputs of an engine step are in their sinks."""
        self.on_ended_leases: Callable[[list[tuple[LeaseId, LeaseEnd]]], None] = _ignored
        """The engine has freed the blocks of these leases."""
        self._pool = pool
        self._max_requests = config.max_ongoing_requests
        self._drain_s = config.drain_s
        self._scheduler = scheduler
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """Of the whole life of the worker: one that ends, ends it."""
        self._failure: str | None = None
        self._interface = own_interface_of(host)
        self.engine = Engine(
            pool,
            config,
            worker=self.id,
            rank=own_rank(),
            interface=self._interface,
            on_prompt=self._count_prompt,
            on_step=lambda: self.on_step(),
            on_ended_leases=lambda ended: self.on_ended_leases(ended),
        )
        self.service.on_call(ANSWER, lambda _: show_life(self.engine, config.stall_timeout_s, self.id))
        self._kv_events = KvEventFeed(self.id, self.engine.kv_events, scheduler.send_kv_events)
        self._watch = Watchdog(self.engine, config.stall_timeout_s, lambda: self._say_left(config.stall_timeout_s))

    async def start(
        self,
        on_reply: Callable[[ReportReply], None],
        links: Callable[[], dict[WorkerId, LinkSpeed | None]] = dict,
        transfers: Callable[[], list[TransferSample]] = list,
    ) -> None:
        """Warm up, listen, and report from now on: the proved `links`, and the `transfers` since the last report.
        `on_reply` takes the Scheduler's answer to each report.
        """
        self._links, self._transfers, self._on_reply = links, transfers, on_reply
        await self.engine.warm_up()
        gc.collect()
        gc.freeze()  # what is loaded by now lives as long as the process: collections need not walk it
        self._listener = await Listener.start(self._interface.host, self.service)
        self._tasks = [
            asyncio.create_task(self._report_forever(self._listener.address)),
            asyncio.create_task(self._watch.run()),
            asyncio.create_task(self._kv_events.run()),
        ]

    async def forget_prefixes(self) -> None:
        """What the engine caches cannot be trusted. Raises ServingError where it cannot be emptied."""
        self._kv_events.mirror.expect_clear()
        await self.engine.forget_prefixes()
        self._kv_events.mirror.clear()

    def fail(self, why: str) -> None:
        """Have this replica replaced."""
        logger.error("this worker must be replaced: %s", why)
        self._failure = why

    async def check_health(self) -> None:
        """Raises when the engine is dead or hangs, or this worker cannot do its part, so that Serve replaces it."""
        await self.engine.check_health()
        if self._failure is not None:
            raise RuntimeError(self._failure)
        for task in self._tasks:
            if task.done():
                raise RuntimeError("this worker no longer reports, or its engine hangs") from task.exception()

    def scrape(self) -> metrics.Scrape:
        return metrics.scrape(self._pool, self.id)

    async def leave(self, *drained: Callable[[], Awaitable[None]]) -> None:
        """Get no more requests, finish those that run, wait for what else has to be `drained`, in order, and stop. What
        still runs shortly before Serve's grace time ends goes to other workers.
        """
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await self._say_left(None)
        try:
            async with asyncio.timeout(max(0.0, self._drain_s - LAST_WORDS_S)):
                await self.engine.drained()
        except TimeoutError:
            logger.warning("requests still run after %g s of draining: they go on elsewhere", self._drain_s)
            await self.engine.hand_back_running()
        for wait in drained:
            await wait()
        if self._listener is not None:
            await self._listener.close()
        self.engine.shutdown()

    def _count_prompt(self, sources: PromptTokenSources) -> None:
        for source in ("computed", "local", "pulled", "offloaded"):
            metrics.PROMPT_TOKENS.labels(self._pool, source).inc(getattr(sources, source))

    async def _report_forever(self, address: Address) -> None:
        """Ends when the engine dies: a worker that cannot serve must not be placed on."""
        names_requests = False
        while True:
            try:
                await self.engine.check_health()
            except Exception:
                await self._say_left(REPORT_INTERVAL_S)
                raise
            if not self._watch.is_stalled:
                try:
                    reply = await self._scheduler.report(self._report(address, names_requests))
                    names_requests = reply.wants_requests
                    if reply.wants_kv_snapshot:
                        self._kv_events.mirror.want_snapshot()
                    self._on_reply(reply)
                except ServingError as error:
                    logger.warning("a report was not delivered: %s", error)
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _report(self, address: Address, names_requests: bool) -> WorkerReport:
        return WorkerReport(
            worker=self.id,
            pool=self._pool,
            address=address,
            load=self.engine.load(),
            max_requests=self._max_requests,
            shape=self.engine.shape,
            steps=self.engine.take_samples(),
            transfers=self._transfers(),
            transport=self.engine.transport,
            links=self._links(),
            kv_events_through=self._kv_events.mirror.sent_through,
            requests=self.engine.open_requests if names_requests else None,
        )

    async def _say_left(self, engine_silent_s: float | None) -> None:
        with suppress(ServingError):  # the Scheduler may be away, or leaving as well
            await self._scheduler.say_leaving(WorkerLeft(worker=self.id, engine_silent_s=engine_silent_s))


def _nothing() -> None:
    pass


def _ignored(ended: list[tuple[LeaseId, LeaseEnd]]) -> None:
    pass

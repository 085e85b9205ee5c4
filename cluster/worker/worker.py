"""What both pools' deployments share: listen for the other processes, report to the Scheduler, watch the engine, leave
in order.
"""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from cluster.clients.scheduler_client import SchedulerClient
from cluster.config.pools import PoolConfig
from cluster.engine.kv_event_feed import KvEventFeed
from cluster.engine.port import EngineHooks, WorkerEngine
from cluster.errors import ServingError
from cluster.event_loop import watch_event_loop
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Address, Pool, WorkerId
from cluster.messages.reports import REPORT_INTERVAL_S, ReportReply, TransferSample, WorkerReport
from cluster.messages.scheduler_events import WorkerLeft
from cluster.messages.transport import LinkSpeed
from cluster.metrics.engines import PROMPT_TOKENS, observe_steps
from cluster.metrics.page import Scrape, scrape
from cluster.rpc.connection import Service
from cluster.rpc.listener import Listener
from cluster.rpc.protocol import ANSWER
from cluster.worker.forgetting import Forgetting
from cluster.worker.tool_waits import ToolWaits
from cluster.worker.watchdog import Watchdog, show_life
from kvtransfer.handoff import PulledBlocks
from kvtransfer.lease_terms import LeaseEnd, LeaseId

logger = logging.getLogger("baton.worker")

HAND_BACK_S = 2.0
"""How long before Serve kills a draining worker its running requests go to other workers, in seconds. Longer cuts long
answers earlier; shorter risks that requests still run when the worker dies, and are suspected of having killed it.
"""


class WorkerHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What the deployment of a pool adds to a worker."""

    on_step: Callable[[], None]
    """Called when all outputs of an engine step are in their sinks."""
    on_ended_leases: Callable[[list[tuple[LeaseId, LeaseEnd]]], None] = lambda ended: None
    """Called when the engine has freed the KV blocks of these leases."""
    on_reply: Callable[[ReportReply], None] = lambda reply: None
    """Called with the Scheduler's answer to each report."""
    links: Callable[[], dict[WorkerId, LinkSpeed | None]] = dict
    """The proven links, for a report."""
    probing: Callable[[], WorkerId | None] = lambda: None
    """The prefill worker to which a link is proved or measured now."""
    link_failures: Callable[[], dict[WorkerId, str]] = dict
    """Why the last attempts to prove a link have failed."""
    num_leases: Callable[[], int] = lambda: 0
    """Leases whose KV blocks the worker keeps."""
    on_convicted: Callable[[WorkerId], None] = lambda prefill: None
    """Called with a prefill worker whose handoffs to this worker were wrong."""
    take_transfers: Callable[[], list[TransferSample]] = list
    """The transfers since the last report."""


class Worker:
    """One replica of a pool, around its engine."""

    def __init__(
        self,
        worker: WorkerId,
        pool: Pool,
        config: PoolConfig,
        *,
        engine: WorkerEngine,
        service: Service,
        scheduler: SchedulerClient,
        hooks: WorkerHooks,
    ) -> None:
        """`service`: what other processes may ask of this worker, complete but for `ANSWER`, `FORGET` and
        `AWAIT_TOOLS`.
        """
        self._id = worker
        self._pool = pool
        self._max_requests = config.max_ongoing_requests
        self._drain_s = config.drain_s
        self._engine = engine
        self._service = service
        self._scheduler = scheduler
        self._hooks = hooks
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """Tasks for the whole life of the worker: the worker ends with the first that ends."""
        self._failure: str | None = None
        engine.attach(
            EngineHooks(on_prompt=self._count_prompt, on_step=hooks.on_step, on_ended_leases=hooks.on_ended_leases)
        )
        self._forgetting = Forgetting(self, service, on_convicted=hooks.on_convicted, on_failed=self.fail)
        self._tool_waits = ToolWaits(engine, service)
        service.on_call(ANSWER, lambda _: show_life(engine, config.stall_timeout_s, worker))
        self._kv_events = KvEventFeed(worker, engine.kv_events, scheduler.send_kv_events)
        self._watchdog = Watchdog(engine, config.stall_timeout_s, lambda: self._say_left(config.stall_timeout_s))

    async def start(self, host: str) -> None:
        """Warm up, listen at `host`, and report from now on."""
        await self._engine.warm_up()
        gc.collect()
        gc.freeze()  # what is loaded now lives as long as the process: collections need not walk it
        self._listener = await Listener.start(host, self._service)
        self._tasks = [
            asyncio.create_task(self._report_forever(self._listener.address)),
            asyncio.create_task(self._watchdog.run()),
            asyncio.create_task(self._kv_events.run()),
            asyncio.create_task(watch_event_loop()),
        ]

    async def forget(self, blocks: PulledBlocks) -> None:
        """Raises ServingError if the engine cannot drop these blocks alone."""
        await self._engine.forget(blocks)

    async def forget_prefixes(self) -> None:
        """Empty the engine's caches, which cannot be trusted. Raises ServingError if the engine cannot."""
        self._kv_events.mirror.expect_clear()
        await self._engine.forget_prefixes()
        self._kv_events.mirror.clear()

    def fail(self, why: str) -> None:
        """Have this replica replaced."""
        logger.error("this worker must be replaced: %s", why)
        self._failure = why

    async def check_health(self) -> None:
        """Raise if the engine is dead or hangs, or if this worker cannot do its part, so that Serve replaces it."""
        await self._engine.check_health()
        if self._failure is not None:
            raise RuntimeError(self._failure)
        for task in self._tasks:
            if task.done():
                raise RuntimeError("this worker no longer reports, or its engine hangs") from task.exception()

    def scrape(self) -> Scrape:
        return scrape(self._pool, self._id)

    async def leave(self, *drained: Callable[[], Awaitable[None]]) -> None:
        """Get no more requests, finish those that run, wait for everything in `drained`, in order, and stop. Requests
        that still run shortly before Serve's grace time ends go to other workers.
        """
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await self._say_left(None)
        patience_s = max(0.0, self._drain_s - HAND_BACK_S)
        try:
            async with asyncio.timeout(patience_s):
                await self._engine.drained()
        except TimeoutError:
            logger.warning("requests still run after %g s of draining: they go on elsewhere", patience_s)
            await self._engine.hand_back_running()
        for wait in drained:
            await wait()
        if self._listener is not None:
            await self._listener.close()
        self._scheduler.close()
        self._engine.shutdown()

    def _count_prompt(self, sources: PromptTokenSources) -> None:
        for source in ("computed", "local", "pulled", "offloaded"):
            PROMPT_TOKENS.labels(self._pool, source).inc(getattr(sources, source))

    async def _report_forever(self, address: Address) -> None:
        """Ends when the engine dies, because a worker that cannot serve must not be placed on."""
        names_requests = False
        while True:
            try:
                await self._engine.check_health()
            except Exception:
                await self._say_left(REPORT_INTERVAL_S)
                raise
            if not self._watchdog.is_stalled:
                try:
                    reply = await self._scheduler.report(self._report(address, names_requests))
                    names_requests = reply.wants_requests
                    if reply.wants_kv_snapshot:
                        self._kv_events.send_snapshot()
                    self._kv_events.every_s = reply.kv_events_every_s
                    self._hooks.on_reply(reply)
                except ServingError as error:
                    logger.warning("a report was not delivered: %s", error)
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _report(self, address: Address, names_requests: bool) -> WorkerReport:
        steps = self._engine.take_samples()
        observe_steps(self._pool, steps)
        return WorkerReport(
            worker=self._id,
            pool=self._pool,
            address=address,
            load=msgspec.structs.replace(self._engine.load(), num_leases=self._hooks.num_leases()),
            max_requests=self._max_requests,
            shape=self._engine.shape,
            steps=steps,
            transfers=self._hooks.take_transfers(),
            transport=self._engine.transport,
            links=self._hooks.links(),
            probing=self._hooks.probing(),
            link_failures=self._hooks.link_failures(),
            kv_events_through=self._kv_events.mirror.sent_through,
            requests=self._engine.open_requests if names_requests else None,
        )

    async def _say_left(self, engine_silent_s: float | None) -> None:
        with suppress(ServingError):  # the Scheduler may be away, or leaving as well
            await self._scheduler.say_leaving(WorkerLeft(worker=self._id, engine_silent_s=engine_silent_s))

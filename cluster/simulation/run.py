"""One run: a workload goes through the production session and Scheduler to simulated workers, on a virtual clock.

Every request of the workload has its own client and one record. The client sends the request once, or again after each
Retry-After up to `max_tries` times. The same workload, setting and Scheduler give the same records.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple, Protocol, cast

import msgspec

from cluster.errors import Overloaded, ServingError
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Outcome, RequestId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.retention import ToolWait
from cluster.messages.scheduler_events import HandoffChecked, RequestClosed, SchedulerEvent
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.pools.elastic_pools import ElasticPools, SimulatedAutoscaler, SizeChange, Starting
from cluster.simulation.pools.pool_setting import ClusterSetting
from cluster.simulation.pools.reporter import SchedulerUnderTest
from cluster.simulation.pools.simulated_pools import SimulatedPools
from cluster.simulation.pools.simulated_worker import Prompt
from cluster.simulation.traffic.workload import RequestRecord, SimRequest
from cluster.uncollected import uncollected
from router.pending_placements import PendingPlacements
from router.session.ports import DecodePort, PrefillPort, SessionPorts
from router.session.receipt import RouteReceipt, Terms
from router.session.session import Session


class ElasticRun(NamedTuple):
    records: list[RequestRecord]
    worker_s: float
    """Seconds of all workers, from the order to the end of each."""
    lasted_s: float
    """Seconds until the last request had ended."""
    changes: list[SizeChange]
    """When which sizes were asked for."""


Watch = Callable[[RequestRecord], None]
Pauses = dict[RequestId, Callable[[int], None]]
"""How each open request is told to pause."""


class PlacingScheduler(Protocol):
    """What a client asks: the Scheduler, or what stands before several (cluster/simulation/cells/cell_front.py)."""

    async def place(self, request: PlacementRequest, /) -> Placement | Rejection: ...

    def tell(self, event: SchedulerEvent, /) -> None: ...


class WorkerPorts(PrefillPort, DecodePort, Protocol):
    """The workers of all pools."""


def simulate(
    workload: Sequence[SimRequest],
    setting: ClusterSetting,
    make_scheduler: Callable[[], SchedulerUnderTest],
    watch: Watch | None = None,
) -> list[RequestRecord]:
    """Simulate the workload, and return the records in its order, which is the order of arrivals.

    `make_scheduler` makes the Scheduler, and is called on the virtual loop. `watch` gets each record when its request
    has ended, and an error that `watch` raises ends the run.
    """

    async def run() -> list[RequestRecord]:
        scheduler = make_scheduler()
        return await serve(workload, SimulatedPools(setting, scheduler), scheduler, watch)

    with uncollected():
        return VirtualLoop().run(run())


def simulate_elastic(
    workload: Sequence[SimRequest],
    setting: ClusterSetting,
    make_scheduler: Callable[[], PendingPlacements],
    autoscaler: SimulatedAutoscaler,
    starting: Starting,
) -> ElasticRun:
    """As `simulate`, with pools that begin with the sizes of the setting and follow an autoscaler."""

    async def run() -> ElasticRun:
        scheduler = make_scheduler()
        pools = SimulatedPools(setting, scheduler)
        elastic = ElasticPools(pools, scheduler, autoscaler, starting)
        records = await serve(workload, pools, scheduler)
        return ElasticRun(records, elastic.worker_s(), asyncio.get_running_loop().time(), elastic.changes)

    with uncollected():
        return VirtualLoop().run(run())


async def serve(
    workload: Sequence[SimRequest], pools: SimulatedPools, scheduler: SchedulerUnderTest, watch: Watch | None = None
) -> list[RequestRecord]:
    """Start a client for each request at the time of its arrival, and wait for all records."""
    pauses: Pauses = {}
    if isinstance(scheduler, PendingPlacements):
        pass_pauses(scheduler, pauses)
    setting = pools.setting
    return await serve_clients(
        workload, lambda number, sim: Client(number, sim, setting, pools, scheduler, pauses), watch
    )


async def serve_clients(
    workload: Sequence[SimRequest], client_of: Callable[[int, SimRequest], "Client"], watch: Watch | None = None
) -> list[RequestRecord]:
    """As `serve`. `client_of` makes the client of a request, from the request's number in the workload."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[RequestRecord]] = []
    for number, sim in enumerate(workload):
        if sim.follows is None:
            if (wait_s := sim.arrival_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            task = loop.create_task(client_of(number, sim).run())
        else:
            task = loop.create_task(_follow(tasks[sim.follows], number, sim, client_of))
        if watch is not None:
            task.add_done_callback(partial(_show, watch))
        tasks.append(task)
    return [await task for task in tasks]


async def _follow(
    before: "asyncio.Task[RequestRecord]",
    number: int,
    sim: SimRequest,
    client_of: Callable[[int, SimRequest], "Client"],
) -> RequestRecord:
    """Send a request some time after another one has ended in any way."""
    await asyncio.wait([before])
    await asyncio.sleep(sim.gap_s)
    arrived = msgspec.structs.replace(sim, arrival_s=asyncio.get_running_loop().time())
    return await client_of(number, arrived).run()


def pass_pauses(scheduler: PendingPlacements, pauses: Pauses) -> None:
    """Tell the open requests of `pauses` when the Scheduler wants them to pause."""
    scheduler.on_pause = lambda _, pause, _slo_class: pauses[pause.request_id](pause.attempt)


def _show(watch: Watch, task: "asyncio.Task[RequestRecord]") -> None:
    if not task.cancelled() and task.exception() is None:
        watch(task.result())


class Client:
    """The client of one request, which is also the SchedulerPort and the RequestObserver of its sessions."""

    def __init__(
        self,
        number: int,
        sim: SimRequest,
        setting: ClusterSetting,
        workers: WorkerPorts,
        scheduler: PlacingScheduler,
        pauses: Pauses,
    ) -> None:
        self._number = number
        self._sim = sim
        self._setting = setting
        self._scheduler = scheduler
        self._pauses = pauses
        self._ports = SessionPorts(scheduler=self, prefill=workers, decode=workers, observer=self)
        self._receipt: RouteReceipt | None = None

    async def run(self) -> RequestRecord:
        loop = asyncio.get_running_loop()
        num_tries, retry_after_s = 0, None
        while True:
            num_tries += 1
            began_at = loop.time()
            try:
                await self._run_session(num_tries)
            except Overloaded as error:
                retry_after_s = error.retry_after_s
                if num_tries < self._setting.max_tries:
                    await asyncio.sleep(retry_after_s)
                    continue
            except ServingError:
                pass  # The session's receipt has the outcome.
            self._tell_of_tools()
            return self._record(began_at - self._sim.arrival_s, num_tries, retry_after_s)

    async def _run_session(self, num_tries: int) -> None:
        sim = self._sim
        request = GenerateRequest(
            request_id=RequestId(f"{self._number}.{num_tries}"),
            prompt_token_ids=cast("list[int]", Prompt(sim, sim.num_prompt)),
            sampling_params=b"%d" % self._number,
            max_output_tokens=sim.max_output,
            is_resumable=self._setting.is_resumable,
        )
        terms = Terms(slo_class=sim.slo_class, ttft_s=sim.slo.ttft_s, tpot_s=sim.slo.tpot_s, path=sim.asked_path)
        session = Session(request, self._ports, terms, first_token_timeout_s=self._setting.first_token_timeout_s)
        self._receipt = None
        async with aclosing(session.run()) as deltas:
            async for _ in deltas:
                pass

    def _tell_of_tools(self) -> None:
        """As an ingress does when an answer has called tools."""
        sim, receipt = self._sim, self._receipt
        if sim.calls_tool and sim.block_hashes and receipt is not None and receipt.placement is not None:
            self._ports.decode.await_tools(receipt.placement.generating, ToolWait(sim.block_hashes[-1]))

    def _record(self, waited_s: float, num_tries: int, retry_after_s: float | None) -> RequestRecord:
        """`waited_s`: seconds from the arrival of the request to its last try."""
        sim, receipt = self._sim, self._receipt
        assert receipt is not None, "the session has ended without a receipt"
        assert receipt.outcome is not Outcome.FINISHED or receipt.num_output_tokens == sim.num_output
        predicted = receipt.placement.predicted if receipt.placement else None
        sources = receipt.prefill_sources or receipt.sources
        return RequestRecord(
            arrival_s=sim.arrival_s,
            num_prompt=sim.num_prompt,
            num_output=sim.num_output,
            tenant=sim.tenant,
            slo_class=sim.slo_class,
            slo=sim.slo,
            path=receipt.path,
            worker=receipt.placement.generating if receipt.placement else "",
            ttft_s=None if receipt.ttft_s is None else receipt.ttft_s + waited_s,
            tpot_s=receipt.tpot_s,
            outcome=receipt.outcome,
            num_hit_tokens=sources.local + sources.offloaded if sources else 0,
            predicted_ttft_s=predicted.ttft_s if predicted else None,
            predicted_tpot_s=predicted.tpot_s if predicted else None,
            retry_after_s=retry_after_s,
            num_attempts=receipt.num_attempts,
            num_pauses=receipt.num_pauses,
            num_tries=num_tries,
        )

    # ---- SchedulerPort

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        known = msgspec.structs.replace(request, block_hashes=self._sim.block_hashes, tenant=self._sim.tenant)
        return await self._scheduler.place(known)

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None:
        self._pauses[request_id] = pause

    def tell(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestClosed):
            self._pauses.pop(event.request_id, None)
        self._scheduler.tell(event)

    # ---- RequestObserver

    def closed(self, receipt: RouteReceipt) -> None:
        assert self._receipt is None, "the session has given a second receipt"
        self._receipt = receipt

    def verified(self, checked: HandoffChecked) -> None:
        """Do nothing: simulated handoffs are not verified."""

"""PrefillWorker: one engine of the prefill pool. It computes prompts, lends their KV blocks, and generates where no
decode worker can.
"""

from cluster.clients.scheduler_client import SchedulerClient
from cluster.config.network import NetworkConfig
from cluster.config.pools import PoolConfig
from cluster.messages.ids import CellName, Pool
from cluster.metrics.page import Scrape
from cluster.rpc.connection import Service
from cluster.serve_context import (
    own_interface_of,
    own_worker_id,
    require_reachable_scheduler,
    scheduler_finder,
)
from cluster.step_stream.worker_side import StepStreams
from cluster.worker.engine_start import start_engine
from cluster.worker.worker import Worker, WorkerHooks
from prefill.kv_lender import KVLender


class PrefillWorker:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: PoolConfig, network: NetworkConfig, cell: CellName | None = None
    ) -> None:
        own_host = own_interface_of(network.host).host
        find_scheduler = scheduler_finder(cell)
        await require_reachable_scheduler(find_scheduler, own_host)
        engine, service = start_engine(Pool.PREFILL, config, network), Service()
        self._lender = KVLender(engine.prefills, service, config.kv_lease_s)
        self._streams = StepStreams(engine.generations, service)
        self._worker = Worker(
            own_worker_id(),
            Pool.PREFILL,
            config,
            engine=engine,
            service=service,
            scheduler=SchedulerClient(find_scheduler),
            hooks=WorkerHooks(
                on_step=self._streams.flush,
                on_ended_leases=self._lender.on_ended,
                num_leases=lambda: self._lender.num_leases,
            ),
        )
        await self._worker.start(own_host)

    async def scrape(self) -> Scrape:
        return self._worker.scrape()

    async def check_health(self) -> None:
        await self._worker.check_health()

    async def __del__(self) -> None:
        if "_worker" in self.__dict__:  # absent if the engine did not start
            await self._worker.leave(self._streams.drained, self._lender.drained)

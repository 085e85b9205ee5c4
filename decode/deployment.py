"""DecodeWorker: one engine of the decode pool. It pulls KV blocks, generates, and proves its links to the prefill
pool.
"""

from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_client import PrefillClient, WorkerConnections
from cluster.config.network import NetworkConfig
from cluster.config.pools import PoolConfig
from cluster.messages.ids import CellName, Pool, WorkerId
from cluster.messages.reports import ReportReply
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
from decode.kv_puller import KVPuller
from decode.link_probe import LinkProbe
from decode.proven_links import ProvenLinks


class DecodeWorker:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: PoolConfig, network: NetworkConfig, cell: CellName | None = None
    ) -> None:
        own_host, worker = own_interface_of(network.host).host, own_worker_id()
        find_scheduler = scheduler_finder(cell)
        await require_reachable_scheduler(find_scheduler, own_host)
        engine, service = start_engine(Pool.DECODE, config, network), Service()
        scheduler_client = SchedulerClient(find_scheduler)
        prefill = PrefillClient(WorkerConnections(scheduler_client))
        self._puller = KVPuller(engine.generations, prefill, worker, config.pull_timeout_s, self._suspect)
        self._links: ProvenLinks = ProvenLinks(LinkProbe(worker, engine.probes, self._puller, prefill))
        self._streams = StepStreams(self._puller, service)
        self._worker = Worker(
            worker,
            Pool.DECODE,
            config,
            engine=engine,
            service=service,
            scheduler=scheduler_client,
            hooks=WorkerHooks(
                on_step=self._streams.flush,
                on_reply=self._on_reply,
                on_convicted=self._suspect,
                links=lambda: self._links.proved,
                probing=lambda: self._links.probing,
                link_failures=lambda: self._links.failures,
                take_transfers=self._puller.take_samples,
            ),
        )
        await self._worker.start(own_host)

    async def scrape(self) -> Scrape:
        return self._worker.scrape()

    async def check_health(self) -> None:
        await self._worker.check_health()

    async def __del__(self) -> None:
        if "_worker" in self.__dict__:  # absent if the engine did not start
            await self._worker.leave(self._streams.drained)

    def _suspect(self, prefill: WorkerId) -> None:
        self._links.suspect(prefill)

    def _on_reply(self, reply: ReportReply) -> None:
        self._links.obey(reply.link, reply.gone)

"""PrefillWorker: one engine of the prefill pool. Computes prompts, lends their KV blocks, and generates where no decode
worker can.
"""

from ray.serve.handle import DeploymentHandle

from cluster.clients.scheduler_client import SchedulerClient
from cluster.config.pools import PoolConfig
from cluster.messages.ids import Pool
from cluster.metrics import Scrape
from cluster.serve_context import own_interface_of, own_node, require_reachable_scheduler, scheduler_address
from cluster.step_stream.worker_side import StepStreams
from cluster.worker.worker import Worker
from prefill.kv_lender import KVLender


class PrefillWorker:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: PoolConfig, host: str | None, scheduler: DeploymentHandle
    ) -> None:
        await require_reachable_scheduler(scheduler, own_interface_of(host).host, own_node())
        self._worker = Worker(Pool.PREFILL, config, host, SchedulerClient(lambda: scheduler_address(scheduler)))
        self._lender = KVLender(self._worker.engine, self._worker.service, config.kv_lease_s)
        self._worker.on_ended_leases = self._lender.on_ended
        self._streams = StepStreams(self._worker.engine, self._worker.service)
        self._worker.on_step = self._streams.flush
        await self._worker.start(on_reply=lambda reply: None)

    async def scrape(self) -> Scrape:
        return self._worker.scrape()

    async def check_health(self) -> None:
        await self._worker.check_health()

    async def __del__(self) -> None:
        if "_streams" in self.__dict__:  # absent when the engine did not start
            await self._worker.leave(self._streams.drained, self._lender.drained)

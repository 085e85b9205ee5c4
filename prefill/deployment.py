"""PrefillWorker: one engine of the prefill pool. Computes prompts, pins their KV blocks and returns the hand-over."""

from ray.serve.handle import DeploymentHandle

from cluster.config import PoolConfig
from cluster.handles import scheduler_address
from cluster.metrics import Scrape
from cluster.peers import SchedulerPeer
from cluster.protocol import ABORT_PREFILL, PREFILL
from cluster.types import Pool
from cluster.worker import Worker


class PrefillWorker:
    async def __init__(self, config: PoolConfig, scheduler: DeploymentHandle) -> None:  # type: ignore[misc]
        self._worker = Worker(Pool.PREFILL, config, SchedulerPeer(lambda: scheduler_address(scheduler)))
        self._worker.service.on_call(PREFILL, self._worker.engine.prefill)
        self._worker.service.on_call(ABORT_PREFILL, self._worker.engine.abort)
        await self._worker.start(links=dict, on_reply=lambda reply: None)

    async def scrape(self) -> Scrape:
        return self._worker.scrape()

    async def check_health(self) -> None:
        await self._worker.check_health()

    async def __del__(self) -> None:
        if "_worker" in self.__dict__:  # absent when the engine did not start
            await self._worker.leave()

"""PrefillWorker: one engine of the prefill pool. Computes prompts, pins their KV blocks and returns the hand-over."""

from ray.serve.handle import DeploymentHandle

from cluster.config import PoolConfig
from cluster.handles import SchedulerHandle
from cluster.metrics import Scrape
from cluster.types import GenerateRequest, Pool, RequestId
from cluster.worker import Worker
from kvtransfer.handoff import PrefillResult


class PrefillWorker:
    def __init__(self, config: PoolConfig, scheduler: DeploymentHandle) -> None:
        self._worker = Worker(
            Pool.PREFILL,
            config,
            SchedulerHandle(scheduler),
            connected=frozenset,
            on_reply=lambda reply: None,
        )

    async def prefill(self, request: GenerateRequest) -> PrefillResult | None:
        return await self._worker.engine.prefill(request)

    async def abort(self, request_id: RequestId) -> None:
        await self._worker.engine.abort(request_id)

    async def scrape(self) -> Scrape:
        return self._worker.scrape()

    async def check_health(self) -> None:
        await self._worker.check_health()

    def __del__(self) -> None:
        if "_worker" in self.__dict__:  # absent when the engine did not start
            self._worker.shutdown()

"""DecodeWorker: one engine of the decode pool. Pulls KV blocks, generates, and keeps its links to the prefill pool
warm.
"""

from collections.abc import AsyncIterator

from ray.serve.handle import DeploymentHandle

from cluster.config import PoolConfig
from cluster.errors import PrefillFailed
from cluster.handles import PrefillHandle, SchedulerHandle
from cluster.metrics import Scrape
from cluster.types import GenerateRequest, Pool, ReportReply, RequestId, TokenDelta, WorkerId
from cluster.worker import Worker
from kvtransfer.handoff import KVHandoff
from kvtransfer.links import Links


class DecodeWorker:
    def __init__(self, config: PoolConfig, scheduler: DeploymentHandle, prefill: DeploymentHandle) -> None:
        self._prefill = PrefillHandle(prefill)
        self._links = Links(self._prove_link)
        self._worker = Worker(
            Pool.DECODE,
            config,
            SchedulerHandle(scheduler),
            connected=lambda: self._links.connected,
            on_reply=self._on_reply,
        )

    async def generate(self, request: GenerateRequest, handoff: KVHandoff | None) -> AsyncIterator[list[TokenDelta]]:
        async for deltas in self._worker.engine.generate(request, handoff):
            yield deltas

    async def release(self, request_id: RequestId, handoff: KVHandoff) -> None:
        await self._worker.engine.release(request_id, handoff)

    async def scrape(self) -> Scrape:
        return self._worker.scrape()

    async def check_health(self) -> None:
        await self._worker.check_health()

    def __del__(self) -> None:
        if "_worker" in self.__dict__:  # absent when the engine did not start
            self._worker.shutdown()

    def _on_reply(self, reply: ReportReply) -> None:
        self._links.update(reply.prefill_workers)

    async def _prove_link(self, prefill: WorkerId) -> None:
        request = self._worker.engine.probe_request(RequestId(f"link-{prefill}-{self._worker.id}"))
        result = await self._prefill.prefill(prefill, request)
        if result is None:
            raise PrefillFailed(f"prefill worker {prefill} gave no hand-over", prefill)
        pulled = 0
        async for deltas in self._worker.engine.generate(request, result.handoff):
            pulled += sum(delta.prompt_sources.pulled for delta in deltas if delta.prompt_sources)
        if not pulled:
            raise PrefillFailed(f"nothing was pulled from prefill worker {prefill}", prefill)

"""DecodeWorker: one engine of the decode pool. Pulls KV blocks, generates, and keeps its links to the prefill pool
warm.
"""

from ray.serve.handle import DeploymentHandle

from cluster.config import PoolConfig
from cluster.errors import PrefillFailed
from cluster.feed import Feed
from cluster.handles import scheduler_address
from cluster.metrics import Scrape
from cluster.peers import Peers, PrefillPeers, SchedulerPeer
from cluster.protocol import RELEASE, Release
from cluster.types import Pool, ReportReply, RequestId, WorkerId
from cluster.worker import Worker
from decode.step_stream import StepStreams
from kvtransfer.links import Links


class DecodeWorker:
    async def __init__(self, config: PoolConfig, scheduler: DeploymentHandle) -> None:  # type: ignore[misc]
        peer = SchedulerPeer(lambda: scheduler_address(scheduler))
        self._prefill = PrefillPeers(Peers(peer))
        self._links = Links(self._prove_link)
        self._worker = Worker(Pool.DECODE, config, peer)
        self._streams = StepStreams(self._worker.engine, self._worker.service)
        self._worker.on_step = self._streams.flush
        self._worker.service.on_call(RELEASE, self._release)
        await self._worker.start(connected=lambda: self._links.connected, on_reply=self._on_reply)

    async def scrape(self) -> Scrape:
        return self._worker.scrape()

    async def check_health(self) -> None:
        await self._worker.check_health()

    async def __del__(self) -> None:
        if "_worker" in self.__dict__:  # absent when the engine did not start
            await self._worker.leave()

    async def _release(self, release: Release) -> None:
        await self._worker.engine.release(release.request_id, release.handoff)

    def _on_reply(self, reply: ReportReply) -> None:
        self._links.update(reply.prefill_workers)

    async def _prove_link(self, prefill: WorkerId) -> None:
        engine = self._worker.engine
        request = engine.probe_request(RequestId(f"link-{prefill}-{self._worker.id}"))
        result = await self._prefill.prefill(prefill, request)
        if result is None:
            raise PrefillFailed(f"prefill worker {prefill} gave no hand-over", prefill)
        feed, pulled = Feed(1), 0
        try:
            await engine.start(request, result.handoff, feed)
            while deltas := await feed.next():
                pulled += sum(delta.prompt_sources.pulled for delta in deltas if delta.prompt_sources)
        finally:
            await engine.stop(request.request_id)
        if not pulled:
            raise PrefillFailed(f"nothing was pulled from prefill worker {prefill}", prefill)

"""DecodeWorker: one engine of the decode pool. Pulls KV blocks, generates, and keeps its links to the prefill pool
warm.
"""

from ray.serve.handle import DeploymentHandle

from cluster.config import PoolConfig
from cluster.handles import scheduler_address
from cluster.metrics import Scrape
from cluster.peers import Peers, PrefillPeers, SchedulerPeer
from cluster.protocol import RELEASE, Release
from cluster.types import Pool, ReportReply
from cluster.worker import Worker
from decode.step_stream import StepStreams
from kvtransfer.links import Links
from kvtransfer.probe import LinkProbe


class DecodeWorker:
    async def __init__(self, config: PoolConfig, scheduler: DeploymentHandle) -> None:  # type: ignore[misc]
        peer = SchedulerPeer(lambda: scheduler_address(scheduler))
        self._worker = Worker(Pool.DECODE, config, peer)
        self._links = Links(LinkProbe(self._worker.id, self._worker.engine, PrefillPeers(Peers(peer))))
        self._streams = StepStreams(self._worker.engine, self._worker.service)
        self._worker.on_step = self._streams.flush
        self._worker.service.on_call(RELEASE, self._release)
        await self._worker.start(links=lambda: self._links.proved, on_reply=self._on_reply)

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

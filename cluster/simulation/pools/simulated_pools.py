"""SimulatedPools: the simulated workers, as the ports with which a session runs a request.

A generated token has no value, and only the first and the last token of an answer have a time. A stream gives the first
token alone, and all later tokens with the last one.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from itertools import count

from cluster.errors import RequestPaused, WorkerUnreachable
from cluster.messages.generation import FinishReason, GenerateRequest, TokenDelta
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.messages.reports import TransferSample
from cluster.messages.retention import ToolWait
from cluster.simulation.pools.link_model import LinkModel
from cluster.simulation.pools.pool_setting import ClusterSetting, Fault, PoolSetting, worker_name
from cluster.simulation.pools.reporter import Reporter, SchedulerUnderTest
from cluster.simulation.pools.simulated_worker import SimulatedRequest, SimulatedWorker, handoff_of, kept_by
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks

TOKEN = 0
"""The id of every simulated token."""


class SimulatedPools:
    """The PrefillPort and the DecodePort of simulated sessions. It starts workers, and kills them at their faults."""

    def __init__(self, setting: ClusterSetting, scheduler: SchedulerUnderTest) -> None:
        self.setting = setting
        self._loop = asyncio.get_running_loop()
        self._links = LinkModel(
            setting.link,
            {
                (worker_name(Pool.PREFILL, prefill), worker_name(Pool.DECODE, decode)): speed
                for (prefill, decode), speed in setting.slow_links.items()
            },
        )
        self._reporter = Reporter(setting, scheduler, self._links)
        self._places: dict[str, int] = {}
        """Number of workers that each place has had, by the name of the place."""
        self._workers: dict[WorkerId, SimulatedWorker] = {}
        """The live workers."""
        for pool in Pool:
            for index in range(self._pool(pool).number):
                self._begin(pool, index)
        for fault in setting.faults:
            self._loop.call_at(fault.at_s, self._die, fault)

    @property
    def workers(self) -> list[SimulatedWorker]:
        return list(self._workers.values())

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        there = self._find(worker)
        run = SimulatedRequest(request, is_prefill=True)
        there.start(run)
        try:
            await run.first_token()
        except BaseException:
            there.abort(run)
            raise
        if not run.keeps_kv:
            there.abort(run)
            first = TokenDelta(0, [TOKEN], FinishReason.LENGTH, prompt_sources=run.sources)
            return PrefillResult(handoff=None, first=first)
        there.keep(run)
        first = TokenDelta(0, [TOKEN], prompt_sources=run.sources)
        return PrefillResult(handoff=handoff_of(run, worker), first=first)

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        if there := self._workers.get(worker):
            there.release(request_id)

    async def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        there = self._find(worker)
        run = SimulatedRequest(request, handoff)
        there.start(run)
        try:
            await run.first_token()
            num_left = run.num_output - 1
            yield TokenDelta(0, [TOKEN], None if num_left else FinishReason.LENGTH, prompt_sources=run.sources)
            if num_left:
                await run.end()
                yield TokenDelta(0, [TOKEN] * num_left, FinishReason.LENGTH)
        except (WorkerUnreachable, RequestPaused):
            if run.num_lost > 1:
                yield TokenDelta(0, [TOKEN] * (run.num_lost - 1))
            raise
        finally:
            there.abort(run)

    def pause(self, worker: WorkerId, request_id: RequestId) -> None:
        if there := self._workers.get(worker):
            there.pause(request_id)

    def forget(self, worker: WorkerId, blocks: PulledBlocks | None) -> None:
        """No-op: the caches of simulated workers are right."""

    def await_tools(self, worker: WorkerId, wait: ToolWait) -> None:
        if there := self._workers.get(worker):
            there.retention.awaits(wait.mark, wait.tools, self._loop.time())

    def _find(self, worker: WorkerId) -> SimulatedWorker:
        there = self._workers.get(worker)
        if there is None:
            raise WorkerUnreachable(f"worker {worker} is dead", worker)
        return there

    def _pool(self, pool: Pool) -> PoolSetting:
        return self.setting.prefill if pool is Pool.PREFILL else self.setting.decode

    # ---- handoffs

    def _transfer(self, to: SimulatedWorker, run: SimulatedRequest) -> None:
        assert run.handoff is not None
        source = self._holder(run.handoff)
        if source is None:
            self._loop.call_soon(to.pulled, run, 0)
            return
        now = self._loop.time()
        num_tokens = max(run.num_pulled - run.num_hit_tokens, 0)
        began_at, ends_at = self._links.send(source.place, to.place, num_tokens * self.setting.kv_bytes_per_token, now)
        sample = TransferSample(source.id, num_tokens, ends_at - began_at)
        self._loop.call_at(ends_at, self._transferred, to, run, sample)

    def _transferred(self, to: SimulatedWorker, run: SimulatedRequest, sample: TransferSample) -> None:
        assert run.handoff is not None
        source = self._holder(run.handoff)
        if source is None:
            to.pulled(run, 0)
            return
        kept = kept_by(run.handoff)
        source.release(kept.request_id)
        self._reporter.note_transfer(to, sample)
        to.pulled(run, kept.num_prompt)

    def _holder(self, handoff: KVHandoff) -> SimulatedWorker | None:
        """The prefill worker of the handoff if it still keeps the KV blocks, else None."""
        there = self._workers.get(handoff.worker)
        return there if there is not None and there.keeps(kept_by(handoff)) else None

    # ---- life and death

    def begin(self, pool: Pool) -> WorkerId:
        """Start a worker in the first free place of a pool."""
        taken = {worker.place for worker in self._workers.values()}
        index = next(index for index in count() if worker_name(pool, index) not in taken)
        return self._begin(pool, index)

    def leave(self, worker: WorkerId) -> None:
        """The worker reports no more, and goes on with its requests."""
        self._reporter.end(self._workers[worker])

    def has_requests(self, worker: WorkerId) -> bool:
        return self._workers[worker].has_requests

    def end(self, worker: WorkerId) -> None:
        """End a worker that has left, with the requests that it still has."""
        self._workers.pop(worker).stop()

    def _begin(self, pool: Pool, index: int) -> WorkerId:
        place = worker_name(pool, index)
        generation = self._places.get(place, 0)
        self._places[place] = generation + 1
        cell = f"{self.setting.cell}/" if self.setting.cell else ""
        name = WorkerId(f"{cell}{place}.{generation}" if generation else f"{cell}{place}")
        setting = self._pool(pool)
        worker = SimulatedWorker(
            name,
            place,
            pool,
            setting,
            setting.step_times(index, random.Random(f"{setting.noise_seed}/{name}")),
            kv_bytes_per_token=self.setting.kv_bytes_per_token,
            on_transfer=self._transfer,
            on_cache_change=self._reporter.report_changes,
        )
        self._workers[name] = worker
        self._reporter.begin(worker)
        return name

    def _die(self, fault: Fault) -> None:
        place = worker_name(fault.pool, fault.index)
        for worker in self.workers:
            if worker.place == place:
                del self._workers[worker.id]
                self._reporter.end(worker)
                worker.die()
        if fault.back_after_s is not None:
            self._loop.call_later(fault.back_after_s, self._begin, fault.pool, fault.index)

"""A simulated worker: an engine on the virtual clock that can die. Sessions wait for its requests."""

import asyncio
from collections.abc import Callable, Iterator, Sized
from math import inf
from typing import cast

from cluster.errors import EngineLost, InvalidRequest, RequestPaused, WorkerBusy, WorkerFailed, WorkerUnreachable
from cluster.messages.generation import GenerateRequest, PromptTokenSources
from cluster.messages.ids import Pool, WorkerId
from cluster.messages.reports import EngineShape, StepSample, WorkerLoad
from cluster.simulation.engine.engine_request import EngineRequest, Moment, Phase
from cluster.simulation.engine.engine_setting import StepTimes
from cluster.simulation.engine.simulated_engine import SimulatedEngine
from cluster.simulation.pools.pool_setting import PoolSetting
from cluster.simulation.pools.worker_retention import WorkerRetention
from cluster.simulation.traffic.workload import SimRequest
from kvtransfer.handoff import KVHandoff
from router.prediction.hardware import prior

_RUN = "run"


class Prompt:
    """The prompt of a simulated request. It has a length and no tokens, because no code looks at them."""

    __slots__ = ("_length", "sim")

    def __init__(self, sim: SimRequest, length: int) -> None:
        self.sim = sim
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __add__(self, tokens: Sized) -> "Prompt":
        return Prompt(self.sim, self._length + len(tokens))


class SimulatedRequest(EngineRequest):
    """A request on one worker."""

    __slots__ = ("_error", "_has_finished", "_has_first", "_waiter", "handoff", "num_lost", "tenant")

    def __init__(self, request: GenerateRequest, handoff: KVHandoff | None = None, *, is_prefill: bool = False) -> None:
        prompt = cast("Prompt", request.prompt_token_ids)
        num_output = prompt.sim.num_output - request.num_generated
        super().__init__(
            request.request_id,
            len(prompt),
            1 if is_prefill else num_output,
            prompt.sim.block_hashes,
            keeps_kv=is_prefill and num_output > 1,
            num_pulled=kept_by(handoff).num_prompt if handoff else 0,
            due_at=_due_at(request.first_token_within_s, is_pulled=handoff is not None),
            tpot_s=inf if request.tpot_s is None else request.tpot_s,
        )
        self.rank = request.rank
        self.tenant = prompt.sim.tenant
        self.handoff = handoff
        self.num_lost = 0
        """Tokens that the request had when its worker died, or when it was paused."""
        self._has_first = self._has_finished = False
        self._error: WorkerFailed | None = None
        self._waiter: asyncio.Future[None] | None = None

    def happened(self, moment: Moment) -> None:
        self._has_first = True
        self._has_finished |= moment is Moment.FINISHED
        self._wake()

    def fail(self, error: WorkerFailed) -> None:
        self._error = error
        self._wake()

    async def first_token(self) -> None:
        while not self._has_first:
            await self._wait()

    async def end(self) -> None:
        while not self._has_finished:
            await self._wait()

    @property
    def sources(self) -> PromptTokenSources:
        pulled = max(self.num_pulled - self.num_hit_tokens, 0)
        known = self.num_hit_tokens + self.num_loaded_tokens + pulled
        return PromptTokenSources(self.num_prompt - known, self.num_hit_tokens, pulled, self.num_loaded_tokens)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter


def _due_at(within_s: float | None, *, is_pulled: bool) -> float:
    """As cluster/engine_core/engine_hints.py has it: a prompt that another engine has computed is due at once."""
    if is_pulled:
        within_s = min(within_s or 0.0, 0.0)
    return inf if within_s is None else asyncio.get_running_loop().time() + within_s


def handoff_of(run: SimulatedRequest, worker: WorkerId) -> KVHandoff:
    return KVHandoff(worker=worker, params={_RUN: run, "remote_num_tokens": run.num_prompt})


def kept_by(handoff: KVHandoff) -> SimulatedRequest:
    """The prefill whose KV the handoff gives."""
    run: SimulatedRequest = handoff.params[_RUN]
    return run


class SimulatedWorker:
    """An engine with its requests. A `ReportedEngine` (cluster/engine/port.py)."""

    def __init__(
        self,
        worker: WorkerId,
        place: str,
        pool: Pool,
        setting: PoolSetting,
        step_times: StepTimes,
        *,
        kv_bytes_per_token: int,
        on_transfer: "Callable[[SimulatedWorker, SimulatedRequest], None]",
        on_cache_change: "Callable[[SimulatedWorker], None]",
    ) -> None:
        """`place`: what has the links; a worker that comes back after a fault has the place of the one before.
        `on_transfer` is called when a request has memory for the KV of its handoff, `on_cache_change` when the cache
        has changed.
        """
        self.id = worker
        self.place = place
        self.pool = pool
        self.setting = setting
        self.engine = SimulatedEngine(setting.engine, step_times, prior(setting.kind))
        self.retention = WorkerRetention(setting.engine, self.engine.cache)
        self.shape = EngineShape(
            kind=setting.kind,
            kv_capacity_tokens=setting.engine.kv_capacity_tokens,
            block_size=setting.engine.block_size,
            max_step_tokens=setting.engine.max_step_tokens,
            max_running=setting.engine.max_decoding,
            has_short_steps=setting.engine.has_short_steps,
            by_deadline=setting.engine.by_deadline,
            overtakes=setting.engine.overtakes,
            kv_bytes_per_token=kv_bytes_per_token,
        )
        self.is_alive = True
        self._kept: dict[str, SimulatedRequest] = {}
        """Finished prefills by request id whose KV blocks no decode worker has pulled yet."""
        self._runs: dict[SimulatedRequest, None] = {}
        self._on_transfer = on_transfer
        self._on_cache_change = on_cache_change
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_requests(self) -> bool:
        """Whether requests run here, or KV blocks of finished prefills wait for their decode workers."""
        return bool(self._runs or self._kept)

    def load(self) -> WorkerLoad:
        return self.engine.load(self._loop.time())

    def take_samples(self) -> list[StepSample]:
        return self.engine.steps.take_samples()

    def start(self, run: SimulatedRequest) -> None:
        """Submit a request to the engine.

        Raises:
            WorkerUnreachable: the worker is dead.
            WorkerBusy: the worker has `max_requests` requests.
            InvalidRequest: the request does not fit into the engine's memory.
        """
        if not self.is_alive:
            raise WorkerUnreachable(f"worker {self.id} is dead", self.id)
        if len(self._runs) >= self.setting.max_requests:
            raise WorkerBusy(f"worker {self.id} has {len(self._runs)} requests", self.id)
        if not self.setting.engine.fits(run.num_prompt, run.num_output):
            raise InvalidRequest(f"{run.num_prompt} + {run.num_output} tokens do not fit into worker {self.id}")
        self._runs[run] = None
        self.retention.came(run, run.tenant, self._loop.time())
        self.engine.submit(run, self._loop.time())
        self._settle()

    def abort(self, run: SimulatedRequest) -> None:
        """End a request whose session no longer waits."""
        self._runs.pop(run, None)
        self.retention.left(run)
        if self.is_alive and run.phase is not Phase.ENDED:
            self.engine.abort(run, self._loop.time())
            self._settle()

    def pause(self, request_id: str) -> None:
        """Fail a request that generates with RequestPaused. Its session ends it with `abort`."""
        for run in self._runs:
            if run.request_id == request_id and run.phase is Phase.DECODING:
                run.num_lost = self.engine.steps.generated(run, self._loop.time())
                run.fail(RequestPaused("the request is paused", self.id))

    def keep(self, run: SimulatedRequest) -> None:
        """Keep the KV of a finished prefill until it is pulled or released."""
        del self._runs[run]
        if self.is_alive:
            self._kept[run.request_id] = run

    def keeps(self, run: SimulatedRequest) -> bool:
        return run.request_id in self._kept

    def release(self, request_id: str) -> None:
        """Free the KV that is kept of a prefill."""
        run = self._kept.pop(request_id, None)
        if run is not None:
            self.engine.release(run, self._loop.time())
            self._settle()

    def pulled(self, run: SimulatedRequest, num_tokens: int) -> None:
        if self.is_alive:
            self.engine.pulled(run, num_tokens, self._loop.time())
            self._settle()

    def die(self) -> None:
        self._end(EngineLost(f"the engine of worker {self.id} has died", self.id))

    def stop(self) -> None:
        """End in order, and hand back the requests that still run: they go on elsewhere."""
        self._end(WorkerUnreachable(f"worker {self.id} leaves", self.id))

    def _end(self, error: WorkerFailed) -> None:
        now = self._loop.time()
        self.is_alive = False
        if self._timer is not None:
            self._timer.cancel()
        self._kept.clear()
        for run in self._runs:
            run.num_lost = self.engine.steps.generated(run, now)
            run.fail(error)

    def _advance(self) -> None:
        self._timer = None
        for run, moment in self.engine.advance():
            assert isinstance(run, SimulatedRequest)
            self.retention.happened(run, moment, run.tenant, self._loop.time())
            if moment is Moment.TRANSFER:
                self._on_transfer(self, run)
            else:
                run.happened(moment)
        self._settle()

    def _settle(self) -> None:
        """Set the timer to the engine's next moment."""
        due, timer = self.engine.next_at, self._timer
        if timer is None or timer.when() != due:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(due, self._advance) if due < float("inf") else None
        if self.engine.cache.has_changes:
            self._on_cache_change(self)

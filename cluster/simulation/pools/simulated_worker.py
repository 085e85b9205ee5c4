"""A simulated worker: a simulated engine on the virtual clock. Callers can wait for its requests, and it can die."""

import asyncio
from collections.abc import Callable, Iterator, Sized
from typing import cast

from cluster.errors import EngineLost, InvalidRequest, WorkerBusy, WorkerUnreachable
from cluster.messages.generation import GenerateRequest, PromptTokenSources
from cluster.messages.ids import Pool, WorkerId
from cluster.simulation.engine.engine_request import EngineRequest, Moment, Phase
from cluster.simulation.engine.simulated_engine import SimulatedEngine
from cluster.simulation.pools.pool_setting import PoolSetting
from cluster.simulation.traffic.workload import SimRequest
from kvtransfer.handoff import KVHandoff

_RUN = "run"


class Prompt:
    """Stands for the prompt tokens of a request: it has their number, but no values, because no simulated part reads
    values.
    """

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
    """A request on one worker, whose first token and whose end can be awaited."""

    __slots__ = ("_error", "_has_finished", "_has_first", "_waiter", "handoff", "num_lost")

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
        )
        self.handoff = handoff
        self.num_lost = 0
        """Tokens that the request had been given when its worker died. 0 while the worker lives."""
        self._has_first = self._has_finished = False
        self._error: WorkerUnreachable | None = None
        self._waiter: asyncio.Future[None] | None = None

    def happened(self, moment: Moment) -> None:
        self._has_first = True
        self._has_finished |= moment is Moment.FINISHED
        self._wake()

    def fail(self, error: WorkerUnreachable) -> None:
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


def hand_over(run: SimulatedRequest, worker: WorkerId) -> KVHandoff:
    """The handoff of a prefill that `worker` keeps."""
    return KVHandoff(worker=worker, params={_RUN: run, "remote_num_tokens": run.num_prompt})


def kept_by(handoff: KVHandoff) -> SimulatedRequest:
    """The prefill whose KV blocks the handoff gives."""
    run: SimulatedRequest = handoff.params[_RUN]
    return run


class SimulatedWorker:
    """A worker with one simulated engine. It sets a timer to the engine's next moment, and wakes up who waits."""

    def __init__(
        self,
        worker: WorkerId,
        place: str,
        pool: Pool,
        setting: PoolSetting,
        *,
        on_transfer: "Callable[[SimulatedWorker, SimulatedRequest], None]",
        on_cache_change: "Callable[[SimulatedWorker], None]",
    ) -> None:
        """Start a worker.

        Args:
            place: Name that the worker shares with earlier and later workers of the same links.
            on_transfer: Called when a request has memory for the KV blocks of its handoff.
            on_cache_change: Called when the cache has changes to report.
        """
        self.id = worker
        self.place = place
        self.pool = pool
        self.setting = setting
        self.engine = SimulatedEngine(setting.engine, setting.model)
        self.is_alive = True
        self._kept: dict[str, SimulatedRequest] = {}
        """Finished prefills by request id whose KV blocks no decode worker has pulled yet."""
        self._runs: dict[SimulatedRequest, None] = {}
        self._on_transfer = on_transfer
        self._on_cache_change = on_cache_change
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

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
        if not self.engine.fits(run.num_prompt, run.num_output):
            raise InvalidRequest(f"{run.num_prompt} + {run.num_output} tokens do not fit into worker {self.id}")
        self._runs[run] = None
        self.engine.submit(run, self._loop.time())
        self._settle()

    def abort(self, run: SimulatedRequest) -> None:
        """End a request that no session waits for, so that the engine keeps nothing of the request."""
        self._runs.pop(run, None)
        if self.is_alive and run.phase is not Phase.ENDED:
            self.engine.abort(run, self._loop.time())
            self._settle()

    def keep(self, run: SimulatedRequest) -> None:
        """Keep the KV blocks of a finished prefill until they are released."""
        del self._runs[run]
        if self.is_alive:
            self._kept[run.request_id] = run

    def keeps(self, run: SimulatedRequest) -> bool:
        return run.request_id in self._kept

    def release(self, request_id: str) -> None:
        """Free the KV blocks that are kept for this request, if there are any."""
        run = self._kept.pop(request_id, None)
        if run is not None:
            self.engine.release(run, self._loop.time())
            self._settle()

    def pulled(self, run: SimulatedRequest, num_tokens: int) -> None:
        """Tell the engine that the KV of `num_tokens` prompt tokens has come. 0 is a transfer that failed."""
        if self.is_alive:
            self.engine.pulled(run, num_tokens, self._loop.time())
            self._settle()

    def die(self) -> None:
        """Fail all requests of the worker, and drop what it keeps."""
        now = self._loop.time()
        self.is_alive = False
        if self._timer is not None:
            self._timer.cancel()
        self._kept.clear()
        for run in self._runs:
            run.num_lost = self.engine.generated(run, now)
            run.fail(EngineLost(f"the engine of worker {self.id} has died", self.id))

    def _advance(self) -> None:
        self._timer = None
        for run, moment in self.engine.advance():
            assert isinstance(run, SimulatedRequest)
            if moment is Moment.TRANSFER:
                self._on_transfer(self, run)
            else:
                run.happened(moment)
        self._settle()

    def _settle(self) -> None:
        """Set the timer to the engine's next moment, and report changes of the cache."""
        due, timer = self.engine.next_at, self._timer
        if timer is None or timer.when() != due:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(due, self._advance) if due < float("inf") else None
        if self.engine.cache.has_changes:
            self._on_cache_change(self)

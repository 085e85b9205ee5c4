"""Engine: continuous batching as vLLM does it, as a discrete-event simulation. Pure: whoever owns it has the clock.

A step gives every decoding request a token and spends what is left of `max_step_tokens` on chunks of prompts, first
come first served. A waiting request is admitted when it has a seat and its whole prompt has memory; what its prefix
cache or its host tier holds is not computed. Decoding requests take one token of memory per step; when there is none
left, the request that came last is preempted and computed anew. Requests that are handed their KV join the decodes when
it has come. Steps with prompt chunks are simulated one by one; a run of steps that only decode is one event, until its
first request ends, its memory does, or somebody comes: then it ends with the step that is under way.

`submit`, `abort`, `release`, `pulled` say what happens at `now`; they only move `next_at`. `advance()` is to be called
at `next_at`: it ends the step that runs, begins the next, and returns what has happened.

Invariants: a request holds memory exactly from its admission to its end; seats and memory are never exceeded.
"""

from collections import deque
from math import inf

from cluster.messages.reports import StepSample, WorkerLoad
from cluster.simulation.engine.decode_batch import Decodes
from cluster.simulation.engine.engine_request import EngineOutput, EngineRequest, Moment, Phase
from cluster.simulation.engine.engine_setting import EngineSetting, StepTimes
from cluster.simulation.engine.kv_cache import KvCache

MAX_SAMPLES = 8
"""Step samples that are kept between two reports."""


class SimulatedEngine:
    def __init__(self, setting: EngineSetting, model: StepTimes) -> None:
        self.cache = KvCache(setting.kv_capacity_tokens, setting.block_size, setting.host_tokens)
        self._setting = setting
        self._model = model
        self._waiting: deque[EngineRequest] = deque()
        self._num_pulling = 0
        self._loads: deque[tuple[float, EngineRequest]] = deque()
        """From the host tier, and when they end: one after the other."""
        self._host_free_at = 0.0
        self._ready: deque[EngineRequest] = deque()
        self._running: dict[EngineRequest, None] = {}
        """Prefilling or decoding, in order of admission."""
        self._prefilling: list[EngineRequest] = []
        self._chunks: list[EngineRequest] = []
        """Those that the step which runs computes a chunk of."""
        self._firsts: list[EngineRequest] = []
        """Those that decode in it and have had no token yet: their prompt was computed elsewhere."""
        self._decodes = Decodes()
        self._start = 0.0
        self._end = inf
        """Of the step or run of steps that is under way; inf: the engine is idle."""
        self._steps_planned = 0
        """0: it was idle, and looks for work at `_end`."""
        self._aborted: list[EngineRequest] = []
        """To be dropped with the end of the step."""
        self._outputs: list[EngineOutput] = []
        self._samples: list[StepSample] = []

    @property
    def next_at(self) -> float:
        """When `advance` is due; inf: not before somebody comes."""
        return min(self._end, self._loads[0][0]) if self._loads else self._end

    @property
    def is_empty(self) -> bool:
        """No request is here, kept KV aside."""
        return not (self._waiting or self._num_pulling or self._loads or self._ready or self._running)

    def fits(self, num_prompt: int, num_output: int) -> bool:
        """A request that never fits would wait for ever."""
        return num_prompt + num_output <= self._setting.kv_capacity_tokens

    def submit(self, request: EngineRequest, now: float) -> None:
        self._waiting.append(request)
        if len(self._waiting) == 1:  # behind others it waits for what they wait for
            self._interrupt(now)

    def pulled(self, request: EngineRequest, num_tokens: int, now: float) -> None:
        """The KV of so many of its prompt tokens is here; of none: the transfer has failed, and it is computed."""
        if request.phase is Phase.PULLING:
            self._num_pulling -= 1
            request.num_pulled = num_tokens
            self._is_ready(request, num_tokens, now)

    def release(self, request: EngineRequest, now: float) -> None:
        """Of a prefill: nobody needs its KV any longer."""
        if request.phase is Phase.KEPT:
            self._free(request)
            self._interrupt_if_waiting(now)

    def abort(self, request: EngineRequest, now: float) -> None:
        """Whoever waits is gone at once, whoever is computed with the end of the step."""
        request.is_aborted = True
        match request.phase:
            case Phase.WAITING:
                self._waiting.remove(request)
                request.phase = Phase.ENDED
            case Phase.PREFILLING | Phase.DECODING:
                self._aborted.append(request)
                self._interrupt(now)
            case _:
                self._drop(request)
                self._interrupt_if_waiting(now)

    def advance(self) -> list[EngineOutput]:
        now = self.next_at
        self._outputs = []
        if self._loads and self._loads[0][0] <= now:
            _, request = self._loads.popleft()
            self._is_ready(request, request.num_hit_tokens + request.num_loaded_tokens, now)
        if self._end <= now:
            if self._steps_planned:
                self._end_steps()
            for request in self._aborted:
                self._drop(request)
            self._aborted.clear()
            self._begin_steps(now)
        return self._outputs

    def load(self, now: float) -> WorkerLoad:
        steps = self._steps_until(now)
        waiting = len(self._waiting) + self._num_pulling + len(self._loads) + len(self._ready)
        grown = steps * self._decodes.number  # the memory of the first step is taken
        return WorkerLoad(
            num_running=len(self._running),
            num_waiting=waiting,
            kv_cache_usage=min(1.0, self.cache.used_share + grown / self._setting.kv_capacity_tokens),
        )

    def generated(self, request: EngineRequest, now: float) -> int:
        """Tokens that it has been given."""
        if request.phase is not Phase.DECODING:
            return request.num_generated
        return request.num_generated + self._decodes.steps - request.joined_at_step + self._steps_until(now)

    def samples(self) -> list[StepSample]:
        """Of some steps since the last call."""
        samples, self._samples = self._samples, []
        return samples

    def validate(self) -> None:
        """Assert every invariant. Tests call it between steps."""
        self.cache.validate()
        decoding, steps = [r for r in self._running if r.phase is Phase.DECODING], self._decodes.steps
        assert len(self._running) <= self._setting.max_decoding
        assert len(decoding) == self._decodes.number
        assert [r for r in self._running if r.phase is Phase.PREFILLING] == self._prefilling
        assert self._decodes.context_tokens == sum(r.num_to_prefill + steps - r.joined_at_step for r in decoding)

    # ---- steps

    def _steps_until(self, now: float) -> int:
        """Whole steps of those under way."""
        if self._steps_planned <= 1:
            return 0
        done = self._model.decode_steps_within(self._decodes.number, self._decodes.context_tokens, now - self._start)
        return min(done, self._steps_planned - 1)

    def _interrupt_if_waiting(self, now: float) -> None:
        """Memory has come free."""
        if self._waiting or self._ready:
            self._interrupt(now)

    def _interrupt(self, now: float) -> None:
        """Something is to be done before the next step."""
        if self._end == inf:
            self._end, self._steps_planned = now, 0
        elif self._steps_planned > 1:
            steps = self._steps_until(now) + 1
            if steps < self._steps_planned:
                self._steps_planned = steps
                end = self._start + self._model.decode_run_s(self._decodes.number, self._decodes.context_tokens, steps)
                self._end = max(end, now)

    def _end_steps(self) -> None:
        if len(self._samples) < MAX_SAMPLES:
            self._sample()
        if self._steps_planned > 1:
            self.cache.take(self._decodes.number * (self._steps_planned - 1))
        ended = self._decodes.pass_steps(self._steps_planned)
        for request in self._firsts:
            if request.phase is Phase.DECODING and not request.is_aborted:
                self._outputs.append((request, Moment.FIRST_TOKEN))
        for request in ended:
            self._leave(request)
            self._finish(request)
        for request in self._chunks:
            request.num_computed += request.chunk
            if request.num_computed == request.num_to_prefill:
                self._prefilling.remove(request)
                self._got_first_token(request)

    def _sample(self) -> None:
        new, attended = self._work_of_chunks()
        decoding, context_tokens = self._decodes.number, self._decodes.context_tokens
        seconds = self._end - self._start
        if self._steps_planned > 1:
            seconds = self._model.step_s(0, 0.0, decoding, context_tokens)
        self._samples.append(StepSample(new, int(attended), decoding, context_tokens, seconds))

    def _got_first_token(self, request: EngineRequest) -> None:
        """The first since its prefill: after a preemption it has had others before."""
        request.num_generated += 1
        if request.num_generated == 1 and not request.is_aborted:
            self._outputs.append((request, Moment.FIRST_TOKEN))
        if request.keeps_kv:
            del self._running[request]
            request.phase = Phase.KEPT
        elif request.num_generated == request.num_output:
            del self._running[request]
            self._finish(request)
        else:
            self._decodes.join(request)

    def _begin_steps(self, now: float) -> None:
        self._firsts = []
        if self._ready:
            self._seat_ready()
        has_preempted = False
        while self._decodes.number > self.cache.available_tokens:
            self._preempt(next(reversed(self._running)))
            has_preempted = True
        if self._decodes.number:
            self.cache.take(self._decodes.number)
        budget = self._setting.max_step_tokens - self._decodes.number
        self._chunks = []
        for request in self._prefilling:
            if budget > 0:
                budget -= self._compute(request, budget)
        while self._waiting and budget > 0 and not has_preempted:
            request = self._waiting[0]
            if not self._admit(request, now):
                break
            self._waiting.popleft()
            if request.phase is Phase.PREFILLING:
                budget -= self._compute(request, budget)
        self._start = now
        self._plan(now, has_preempted)

    def _plan(self, now: float, has_preempted: bool) -> None:
        decoding = self._decodes.number
        if self._chunks:
            self._steps_planned = 1
            self._end = now + self._model.step_s(*self._work_of_chunks(), decoding, self._decodes.context_tokens)
        elif decoding:
            steps = min(self._decodes.steps_until_end(), 1 + self.cache.available_tokens // decoding)
            if self._firsts:
                steps = 1
            self._steps_planned = steps
            self._end = now + self._model.decode_run_s(decoding, self._decodes.context_tokens, steps)
        else:  # with the last to run preempted, others may have a seat
            self._steps_planned, self._end = 0, now if has_preempted else inf

    def _work_of_chunks(self) -> tuple[int, float]:
        """Tokens, and tokens that they attend to."""
        new, attended = 0, 0.0
        for request in self._chunks:
            chunk = request.chunk
            new += chunk
            attended += chunk * request.num_computed + chunk * (chunk + 1) / 2
        return new, attended

    def _compute(self, request: EngineRequest, budget: int) -> int:
        """The next chunk of a prompt. Its blocks are known from the step on that computes its end."""
        left = request.num_to_prefill - request.num_computed
        request.chunk = min(budget, left)
        self._chunks.append(request)
        if request.chunk == left:
            self._publish(request, request.num_to_prefill)
        return request.chunk

    # ---- admission

    def _admit(self, request: EngineRequest, now: float) -> bool:
        """Give it memory, if there is a seat and memory for its whole prompt."""
        if len(self._running) >= self._setting.max_decoding:
            return False
        cache, size = self.cache, self._setting.block_size
        num_tokens = request.num_to_prefill
        on_gpu, on_host = cache.match(request.block_hashes, (num_tokens - 1) // size)
        missing = num_tokens - on_gpu * size
        if missing > cache.available_tokens:
            return False
        cache.hold(request.block_hashes[:on_gpu])
        if missing > cache.available_tokens:  # without the blocks that were idle until now
            cache.release(request.block_hashes[:on_gpu])
            return False
        cache.take(missing)
        request.num_held, request.num_private = on_gpu, missing
        request.num_computed = on_gpu * size
        if not request.num_preemptions:
            request.num_hit_tokens = request.num_computed
        if request.num_pulled:
            request.phase = Phase.PULLING
            self._num_pulling += 1
            self._outputs.append((request, Moment.TRANSFER))
        elif on_host:
            self._load(request, on_host * size, now)
        else:
            request.phase = Phase.PREFILLING
            self._running[request] = None
            self._prefilling.append(request)
        return True

    def _load(self, request: EngineRequest, num_tokens: int, now: float) -> None:
        request.phase = Phase.LOADING
        request.num_loaded_tokens = num_tokens
        self._host_free_at = max(self._host_free_at, now) + num_tokens / self._setting.host_tokens_per_s
        self._loads.append((self._host_free_at, request))

    def _is_ready(self, request: EngineRequest, num_computed: int, now: float) -> None:
        request.phase = Phase.READY
        request.num_computed = max(num_computed, request.num_computed)
        self._ready.append(request)
        self._interrupt(now)

    def _seat_ready(self) -> None:
        """One whose last prompt token alone is missing decodes with the others: that is the same work."""
        while self._ready and len(self._running) < self._setting.max_decoding:
            request = self._ready[0]
            decodes = request.num_to_prefill - request.num_computed == 1 and not request.keeps_kv
            if decodes and self._decodes.number > self.cache.available_tokens:
                return
            self._ready.popleft()
            self._running[request] = None
            if not decodes:
                request.phase = Phase.PREFILLING
                self._prefilling.append(request)
                continue
            self._publish(request, request.num_to_prefill)
            self.cache.give_back(1)  # that token's memory is taken with its step
            request.num_private -= 1
            if not request.num_generated:
                self._firsts.append(request)
            self._decodes.join(request)

    # ---- leaving

    def _preempt(self, request: EngineRequest) -> None:
        """vLLM's way: its memory is freed, and it is the first to be admitted again."""
        self._leave(request)
        self._free(request)
        request.phase = Phase.WAITING
        request.num_pulled = 0
        request.num_preemptions += 1
        self._waiting.appendleft(request)

    def _leave(self, request: EngineRequest) -> None:
        """What it has computed stays known."""
        if request.phase is Phase.DECODING:
            self._decodes.leave(request)
        else:
            self._publish(request, request.num_computed)
            self._prefilling.remove(request)
        del self._running[request]

    def _drop(self, request: EngineRequest) -> None:
        match request.phase:
            case Phase.ENDED:
                return
            case Phase.WAITING:  # preempted since
                self._waiting.remove(request)
            case Phase.PREFILLING | Phase.DECODING:
                self._leave(request)
            case Phase.PULLING:
                self._num_pulling -= 1
            case Phase.LOADING:
                self._loads = deque(load for load in self._loads if load[1] is not request)
            case Phase.READY:
                self._ready.remove(request)
            case Phase.KEPT:
                pass
        self._free(request)

    def _finish(self, request: EngineRequest) -> None:
        self._free(request)
        if not request.is_aborted:
            self._outputs.append((request, Moment.FINISHED))

    def _free(self, request: EngineRequest) -> None:
        self.cache.release(request.block_hashes[: request.num_held])
        self.cache.give_back(request.num_private)
        request.num_held = request.num_private = 0
        request.phase = Phase.ENDED

    def _publish(self, request: EngineRequest, num_tokens: int) -> None:
        """Others find the full blocks of the prompt that have KV."""
        blocks = request.block_hashes[: min(num_tokens, request.num_prompt) // self._setting.block_size]
        if len(blocks) > request.num_held:
            self.cache.publish(blocks, request.num_held)
            request.num_private -= (len(blocks) - request.num_held) * self._setting.block_size
            request.num_held = len(blocks)

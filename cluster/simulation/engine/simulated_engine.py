"""SimulatedEngine: continuous batching as vLLM does it, as a discrete-event simulation. Pure.

A step gives every decoding request a token and spends what is left of it on chunks of prompts. A waiting request is
admitted when it has a seat and its whole prompt has memory; what its prefix cache or its DRAM tier holds is not
computed. Decoding requests take one token of memory per step; when there is none left, a request is preempted and
computed anew. Requests whose KV comes from another engine
join the decodes when the KV has come. Steps with prompt chunks are simulated one by one; a run of steps that only
decode is one event. The run lasts until its first request or its memory ends, or until another request comes: then it
ends with the step that is under way.

Which prompt comes first, which request is preempted, and how many tokens of prompts a step has beside decodes, is for
StepPolicy to say.

`submit`, `abort`, `release` and `pulled` tell the engine what happens at `now`; they only move `next_at`. The owner
calls `advance()` at `next_at`: it ends the step that runs, begins the next, and returns what has happened.

Invariants: a request holds memory exactly from its admission to its end; seats and memory are never exceeded.
"""

from cluster.messages.reports import WorkerLoad
from cluster.simulation.engine.engine_request import EngineOutput, EngineRequest, Moment, Phase
from cluster.simulation.engine.engine_setting import EngineSetting, StepTimes
from cluster.simulation.engine.incoming_kv import IncomingKv
from cluster.simulation.engine.kv_cache import KvCache
from cluster.simulation.engine.request_memory import RequestMemory
from cluster.simulation.engine.running_batch import RunningBatch
from cluster.simulation.engine.step_policy import StepPolicy
from cluster.simulation.engine.step_run import StepRun
from router.prediction.step_model import StepModel
from router.prediction.step_room import StepRoom


class SimulatedEngine:
    def __init__(self, setting: EngineSetting, model: StepTimes, prior: StepModel | None = None) -> None:
        """`model`: what steps really take; `prior`: what the engine expects before it has learned from its steps."""
        self.cache = KvCache(setting.kv_capacity_tokens, setting.block_size, setting.host_tokens)
        self._setting = setting
        self._memory = RequestMemory(self.cache)
        self._policy = StepPolicy(setting, prior)
        self._waiting = self._policy.waiting
        self._incoming = IncomingKv(setting.host_tokens_per_s)
        self._batch = RunningBatch(setting.max_decoding)
        self._decodes = self._batch.decodes
        self.steps = StepRun(self._batch, model)
        self._aborted: list[EngineRequest] = []
        """Requests to be dropped with the end of the step."""
        self._outputs: list[EngineOutput] = []

    @property
    def next_at(self) -> float:
        """When `advance` is due; inf if nothing happens before another request comes."""
        return min(self.steps.ends_at, self._incoming.next_at)

    @property
    def is_empty(self) -> bool:
        """True if the engine has no request. Kept KV does not count."""
        return not (self._waiting or self._incoming or self._batch.requests)

    def submit(self, request: EngineRequest, now: float) -> None:
        self._policy.add(request)
        if self._waiting[0] is request:  # behind another request it waits for what that request waits for
            self.steps.interrupt(now)

    def pulled(self, request: EngineRequest, num_tokens: int, now: float) -> None:
        """The KV of the first `num_tokens` of the prompt has come. With 0 the transfer has failed, and the engine
        computes the prompt.
        """
        if request.phase is Phase.PULLING:
            self._incoming.pulled(request, num_tokens)
            self.steps.interrupt(now)

    def release(self, request: EngineRequest, now: float) -> None:
        """Free the KV that is kept of a prefill."""
        if request.phase is Phase.KEPT:
            self._memory.free(request)
            self._use_freed_memory(now)

    def abort(self, request: EngineRequest, now: float) -> None:
        """End a request: at once if it waits, with the end of the step if it is computed."""
        request.is_aborted = True
        match request.phase:
            case Phase.WAITING:
                self._waiting.remove(request)
                request.phase = Phase.ENDED
            case Phase.PREFILLING | Phase.DECODING:
                self._aborted.append(request)
                self.steps.interrupt(now)
            case _:
                self._end(request)
                self._use_freed_memory(now)

    def advance(self) -> list[EngineOutput]:
        now = self.next_at
        self._outputs = []
        if self._incoming.next_at <= now:
            self._incoming.end_load()
            self.steps.interrupt(now)
        if self.steps.ends_at <= now:
            if self.steps.number:
                self._end_steps()
            for request in self._aborted:
                self._end(request)
            self._aborted.clear()
            self._begin_steps(now)
        return self._outputs

    def load(self, now: float) -> WorkerLoad:
        grown = self.steps.done_by(now) * self._decodes.number  # the memory of the first step is taken
        return WorkerLoad(
            num_running=len(self._batch.requests),
            num_waiting=len(self._waiting) + len(self._incoming),
            kv_cache_usage=min(1.0, self.cache.used_share + grown / self._setting.kv_capacity_tokens),
        )

    def validate(self) -> None:
        """Assert every invariant. Tests call it between steps."""
        self.cache.validate()
        self._batch.validate()

    # ---- steps

    def _use_freed_memory(self, now: float) -> None:
        if self._waiting or self._incoming.ready:
            self.steps.interrupt(now)

    def _end_steps(self) -> None:
        self._policy.observe(self.steps.note_sample(), self.steps.number)
        if self.steps.number > 1:
            self.cache.take(self._decodes.number * (self.steps.number - 1))
        ended = self._decodes.pass_steps(self.steps.number)
        for request in self._batch.firsts:
            if request.phase is Phase.DECODING and not request.is_aborted:
                self._outputs.append((request, Moment.FIRST_TOKEN))
        for request in ended:
            self._end(request)
            if not request.is_aborted:
                self._outputs.append((request, Moment.FINISHED))
        for request in self._batch.chunks:
            request.num_computed += request.chunk
            if request.num_computed == request.num_to_prefill:
                self._end_prefill(request)

    def _end_prefill(self, request: EngineRequest) -> None:
        """The prompt is computed, which gives a token. After a preemption it is not the request's first one."""
        request.num_generated += 1
        if request.num_generated == 1 and not request.is_aborted:
            self._outputs.append((request, Moment.FIRST_TOKEN))
        if request.keeps_kv:
            self._batch.leave(request)
            request.phase = Phase.KEPT
        elif request.num_generated == request.num_output:
            self._end(request)
            if not request.is_aborted:
                self._outputs.append((request, Moment.FINISHED))
        else:
            self._batch.decode_prefilled(request)

    def _begin_steps(self, now: float) -> None:
        batch = self._batch
        batch.firsts, batch.chunks = [], []
        if self._incoming.ready:
            self._seat_ready()
        has_preempted = False
        while self._decodes.number > self.cache.available_tokens:
            self._preempt(self._policy.preempted_next(batch))
            has_preempted = True
        if self._decodes.number:
            self.cache.take(self._decodes.number)
        room = self._policy.room(batch, now)
        for request in self._policy.in_order(batch.prefilling):
            if self._setting.overtakes and not has_preempted:
                self._admit_waiting(room, now, due_before=request.due_at)
            self._compute(request, room)
        if not has_preempted:
            self._admit_waiting(room, now)
        self.steps.plan(now, self.cache.available_tokens, has_preempted=has_preempted, is_single=room.saves_time)

    def _admit_waiting(self, room: StepRoom, now: float, due_before: float | None = None) -> None:
        """Admit waiting requests, and compute the first chunks of their prompts.

        `due_before`: only requests that are due earlier, which overtake a prompt that is partly computed.
        """
        while self._waiting and room.tokens(0) > 0:
            request = self._waiting[0]
            if (due_before is not None and request.due_at >= due_before) or not self._admit(request, now):
                break
            self._waiting.pop(0)
            if request.phase is Phase.PREFILLING:
                self._compute(request, room)

    def _compute(self, request: EngineRequest, room: StepRoom) -> None:
        """Compute the next chunk of a prompt, if the step has room for one. Other requests find its blocks from the
        step on that computes its end.
        """
        most = room.tokens(request.num_computed)
        if self._setting.most_of_prompt is not None:
            most = min(most, self._setting.most_of_prompt)
        if most > 0:
            if self._batch.add_chunk(request, most):
                self._memory.publish(request, request.num_to_prefill)
            room.take(request.chunk, request.num_computed)

    # ---- admission

    def _admit(self, request: EngineRequest, now: float) -> bool:
        """Give a request memory, if there is a seat and memory for its whole prompt."""
        if self._batch.is_full:
            return False
        num_on_host = self._memory.admit(request)
        if num_on_host is None:
            return False
        if request.num_pulled:
            self._incoming.pull(request)
            self._outputs.append((request, Moment.TRANSFER))
        elif num_on_host:
            self._incoming.load(request, num_on_host, now)
        else:
            self._batch.prefill(request)
        return True

    def _seat_ready(self) -> None:
        """A request that lacks its last prompt token alone decodes with the decoding ones: that is the same work."""
        ready = self._incoming.ready
        while ready and not self._batch.is_full:
            request = ready[0]
            decodes = request.num_to_prefill - request.num_computed == 1 and not request.keeps_kv
            if decodes and self._decodes.number > self.cache.available_tokens:
                return
            ready.popleft()
            if decodes:
                self._memory.publish(request, request.num_to_prefill)
                self._memory.return_last_token(request)
                self._batch.decode_pulled(request)
            else:
                self._batch.prefill(request)

    # ---- leaving

    def _preempt(self, request: EngineRequest) -> None:
        """As vLLM does it: free the memory of the request, and let it be the first to be admitted again."""
        self._end(request)
        request.phase = Phase.WAITING
        request.num_pulled = 0
        request.num_preemptions += 1
        self._policy.put_back(request)

    def _end(self, request: EngineRequest) -> None:
        """Free what a request has. Full blocks that it has computed stay known."""
        match request.phase:
            case Phase.ENDED:
                return
            case Phase.WAITING:  # preempted since its abort
                self._waiting.remove(request)
            case Phase.PREFILLING:
                self._memory.publish(request, request.num_computed)
                self._batch.leave(request)
            case Phase.DECODING:
                self._batch.leave(request)
            case _:
                self._incoming.drop(request)
        self._memory.free(request)

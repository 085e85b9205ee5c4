"""vLLM's scheduler with three rules of Baton's: how long a step may be, which prompt is computed first, and who gives
up memory. The way of its outputs is in piping_scheduler.py, and which free KV blocks are taken last in
keeping_scheduler.py.

**Elastic steps.** While requests decode, a step computes as many prompt tokens beside them as their TPOT objectives
allow (router/prediction/step_chunk.py), by what this engine's steps have taken so far
(cluster/engine_scheduler/prompt_budget.py). A token of a prompt takes longer the more tokens come before it. So each
prompt of the step takes its part of the step's time, and not of a number of tokens. While none decodes, or none has an
objective, a step has vLLM's `max_num_batched_tokens`. So one engine prefills in long steps, and decodes beside prompts
in steps that its requests can wait for. Where steps within the objectives would compute prompts too slowly, some steps
only decode, and save time for a longer one (router/prediction/step_pacer.py).

**Deadlines.** A request's `priority` is the time at which its first token is due (cluster/engine_core/engine_hints.py).
vLLM's own queue of waiting requests is in this order. Prompts that vLLM has begun to compute share the tokens of a step
with the prompts that wait, in the order of their deadlines. So a prompt that comes later and is due earlier overtakes a
long prompt between two of its chunks. A step that no objective bounds then computes the overtaking prompts alone, and
of others what is computed while the weights are read.

**Memory.** If memory runs short, vLLM preempts a request of the lowest SLO class, and within the class the one that is
due last. Only then does the class count: it delays no prompt.

No prompt is overtaken for ever. Deadlines are points in time, so a prompt that arrives later than another one's
deadline is due later. A request without a deadline has no such bound. A prompt that overtakes and finds no memory holds
nobody up: its tokens go back to the prompts that it would overtake, until memory is freed.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from time import monotonic
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from cluster.engine_core.engine_hints import ENGINE_KIND, KEPT_SHARE, NO_DEADLINE, RANK_KEY, TPOT_KEY
from cluster.engine_core.retention_log import RetentionLog
from cluster.engine_core.step_samples import StepSampler
from cluster.engine_core.token_pipe import TOKEN_PIPE, TokenPipe
from cluster.engine_scheduler import keeping_scheduler
from cluster.engine_scheduler.keeping_scheduler import KeepingScheduler
from cluster.engine_scheduler.prompt_budget import Decodes, PromptBudget
from kvtransfer.forgetting import Caches, OriginLog
from router.prediction.hardware import prior
from router.prediction.step_pacer import Wanted
from router.prediction.step_room import StepRoom

LATER = 2 * NO_DEADLINE
"""What one rank adds to a priority while memory is short. Less could let a deadline count for more than a class; more
changes nothing.
"""


def deadline_scheduler(vllm_config: VllmConfig, **arguments: Any) -> Scheduler:
    """What vLLM's `scheduler_cls` names. vLLM decides late whether an engine schedules asynchronously, so the class is
    chosen here.
    """
    kind = AsyncDeadlineScheduler if vllm_config.scheduler_config.async_scheduling else DeadlineScheduler
    hints = vllm_config.kv_transfer_config.kv_connector_extra_config
    budget = PromptBudget(vllm_config, prior(hints[ENGINE_KIND]))
    path = hints.get(TOKEN_PIPE)
    pipe = None if path is None else TokenPipe.connect(path)
    scheduler = kind(vllm_config=vllm_config, **arguments, budget=budget, pipe=pipe)
    scheduler.keep_at_most(hints.get(KEPT_SHARE, 0.0))
    keeping_scheduler.install()
    for connector in getattr(scheduler.connector, "_connectors", [scheduler.connector]):  # MultiConnector's
        if isinstance(sampler := getattr(connector, "steps", None), StepSampler):
            sampler.tell(budget.observe)
            scheduler.steps = sampler
        if isinstance(log := getattr(connector, "origin_log", None), OriginLog):
            log.caches = Caches(scheduler)
        if isinstance(kept := getattr(connector, "retention_log", None), RetentionLog):
            kept.tell(scheduler.retention_counts)
    return scheduler


class DeadlineScheduler(KeepingScheduler):
    """For engines that schedule a step when the step before it is done, as on CPUs."""

    def __init__(
        self, *arguments: Any, budget: PromptBudget, clock: Callable[[], float] = monotonic, **named: Any
    ) -> None:
        super().__init__(*arguments, clock=clock, **named)
        self.running: list[Request]
        self._max_step_tokens: int = self.max_num_scheduled_tokens
        self._decode_tokens: int = 1 + self.num_spec_tokens
        self._budget = budget
        self._shares: dict[str, int] | None = None
        """Most tokens of this step for each prompt that has a place in it, by request id. None if vLLM needs no limit
        but that of the step.
        """
        self._unclaimed = StepRoom(budget.times, 0)
        """What this step has for the waiting prompts without a share."""
        self._ranked: dict[Request, int] = {}
        """Requests whose priority has their class in it during this step, with their deadlines."""
        self._refused: tuple[str, int] | None = None
        """The prompt that found no place when it would have overtaken others, and how many KV blocks were free then."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        now = self._clock()
        overtaking = self._plan(now)
        self._rank_by_class()
        try:
            output = super().schedule(throttle_prefills)
        finally:
            for request in list(self._ranked):
                self._rank_by_deadline(request)
        self._budget.planned(now, is_idle=not self.running)
        if overtaking is not None:
            # vLLM admits nothing in a step that preempts, and no prompt that has no token of the step.
            had_room = self._shares is not None and self._shares.get(overtaking.request_id, 0) > 0
            is_admitted = overtaking.status is RequestStatus.RUNNING or output.preempted_req_ids
            is_refused = had_room and not is_admitted
            self._refused = (overtaking.request_id, self._num_free_blocks) if is_refused else None
        return output

    def _rank_by_class(self) -> None:
        """For a step that may run out of memory: let vLLM preempt requests of lower classes first, and of one class
        those that are due last. The priorities go back to deadlines when the request is preempted, or after the step.
        """
        if self._num_free_blocks * self.block_size > self._max_step_tokens + len(self.running) * self.block_size:
            return
        for request in self.running:
            params = request.sampling_params
            if params and params.extra_args and (rank := params.extra_args.get(RANK_KEY)):
                self._ranked[request] = request.priority
                request.priority += rank * LATER

    def _rank_by_deadline(self, request: Request) -> None:
        priority = self._ranked.pop(request, None)
        if priority is not None:
            request.priority = priority

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        self._rank_by_deadline(request)
        super()._preempt_request(request, timestamp, drop_stale_output=drop_stale_output)

    def _plan(self, now: float) -> Request | None:
        """Set the tokens of the next step, and the shares in it. Return the first prompt that overtakes another one."""
        self.max_num_scheduled_tokens = self._max_step_tokens
        self._shares = None
        can_admit = self._has_slot and bool(self.waiting or self.kv_holding_waiting)
        if not (self._inflight_prefills or can_admit):
            return None
        begun, others = list[Request](), list[Request]()
        for request in self.running:
            (begun if request.is_prefill_chunk else others).append(request)
        begun.sort(key=_due)
        loaded = self._loaded() if can_admit and self.kv_holding_waiting else []
        prompts = [*begun, *(request for request in loaded if not self._is_decode(request))]
        if not prompts and not self.waiting:
            return None
        decodes = _together(chain(filter(_goes_on, others), filter(self._is_decode, loaded)))
        # A loaded prompt has room for a decode, too: it has its blocks, so it must go on.
        for_decodes = (decodes.num_requests + len(prompts) - len(begun)) * self._decode_tokens
        num_wanted = sum(map(_left, prompts)) + (_left(self.waiting.peek_request()) if self.waiting else 0)
        num_computed = prompts[0].num_computed_tokens if prompts else 0
        most = max(self._max_step_tokens - for_decodes, 0)
        room = self._budget.beside(decodes, most, Wanted(num_wanted, num_computed), now)
        self.running = others + begun
        overtaking: Request | None = None
        rivals, num_pulls = self._rivals(begun, loaded) if can_admit else ([], 0)
        if begun:
            overtaking = min(rivals, key=_due, default=None)
            if overtaking is not None and self._is_still_refused(overtaking):
                rivals, overtaking = [], None
        if room.is_bounded or (begun and can_admit):
            self._share(begun, rivals, room, for_decodes, has_pulls=num_pulls > 0)
        return overtaking

    def _rivals(self, begun: list[Request], loaded: list[Request]) -> tuple[list[Request], int]:
        """Prompts that share the step with those that are begun: loaded ones, and waiting ones that overtake; and the
        number of pulls that vLLM can start.
        """
        waiting, num_pulls = self._admissible() if self._pause_state == PauseState.UNPAUSED else ([], 0)
        rivals = [request for request in waiting if begun and _due(request) < _due(begun[-1])]
        return rivals + [request for request in loaded if not self._is_decode(request)], num_pulls

    def _share(
        self, begun: list[Request], rivals: list[Request], room: StepRoom, for_decodes: int, *, has_pulls: bool
    ) -> None:
        """Divide what the decodes leave of the step among the prompts that are due first."""
        if begun and not room.is_bounded:
            first = _due(begun[0])
            if urgent := sum(_left(rival) for rival in rivals if _due(rival) < first):
                room.num_left = min(room.num_left, max(urgent, self._budget.nearly_free))
        for_pulls = 1 if has_pulls and (room.num_left > 1 or room.saves_time) else 0
        if not room.saves_time:  # vLLM starts no pull in a step without a token left
            room.num_left -= for_pulls
        self._shares = {}
        for request in sorted((*begun, *rivals), key=_due):
            context = request.num_computed_tokens
            self._shares[request.request_id] = share = min(room.tokens(context), _left(request))
            room.take(share, context)
        for_prompts = sum(self._shares.values()) + room.tokens(0)
        self.max_num_scheduled_tokens = min(for_decodes + for_prompts + for_pulls, self._max_step_tokens)
        self._unclaimed = room

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """vLLM asks this for every request that it gives tokens."""
        if self._shares is not None:
            num_new_tokens = self._within_share(request, num_computed_tokens, num_new_tokens)
            if request.status is not RequestStatus.RUNNING and request.request_id not in self._shares:
                self._unclaimed.take(num_new_tokens, num_computed_tokens)
        if not self.num_prefill_lookahead:
            return num_new_tokens
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)

    def _mamba_block_aligned_split(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        """vLLM asks this before, for models whose chunks must end at blocks."""
        if self._shares is not None:
            cached = num_new_local_computed_tokens + num_external_computed_tokens
            num_new_tokens = self._within_share(request, request.num_computed_tokens + cached, num_new_tokens)
        return super()._mamba_block_aligned_split(
            request, num_new_tokens, num_new_local_computed_tokens, num_external_computed_tokens
        )

    def _within_share(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        shares = self._shares or {}
        if request.status is RequestStatus.RUNNING:
            return min(num_new_tokens, shares.get(request.request_id, num_new_tokens))
        if request.num_tokens - num_computed_tokens <= self._decode_tokens:
            return num_new_tokens
        share = shares.get(request.request_id)
        if share is None:
            share = self._unclaimed.tokens(num_computed_tokens)
        elif self._unclaimed.is_bounded and num_computed_tokens > request.num_computed_tokens:  # it has a cached prefix
            share = self._budget.in_time_of(share, num_computed_tokens)
        if request.num_computed_tokens:
            share = max(share, 1)  # a request that has its blocks must not hold up the others that have theirs
        return min(num_new_tokens, share)

    def _loaded(self) -> list[Request]:
        """Requests whose KV blocks are here, and which can be admitted."""
        here = self.finished_recving_kv_req_ids
        return [
            request
            for request in self.kv_holding_waiting._heap
            if request.status in _ADMITTED or request.request_id in here
        ]

    def _admissible(self) -> tuple[list[Request], int]:
        """Prompts that vLLM can begin in this step if it has the memory, and the number of pulls that it can start."""
        prompts, num_pulls = [], 0
        for request in self.waiting._heap:
            if request.num_stale_output_tokens and not request.drop_stale_output:
                continue
            if request.status not in _ADMITTED and not _has_grammar(request):
                continue
            if (request.kv_transfer_params or {}).get("do_remote_prefill"):
                num_pulls += 1
            else:
                prompts.append(request)
        return prompts, num_pulls

    def _is_still_refused(self, request: Request) -> bool:
        if self._refused is None:
            return False
        request_id, num_free = self._refused
        return request.request_id == request_id and self._num_free_blocks <= num_free

    def _is_decode(self, request: Request) -> bool:
        return _left(request) <= self._decode_tokens

    @property
    def _has_slot(self) -> bool:
        return len(self.running) + self.num_waiting_for_streaming_input < self.max_num_active_reqs

    @property
    def _num_free_blocks(self) -> int:
        return self.kv_cache_manager.block_pool.get_num_free_blocks()


class AsyncDeadlineScheduler(DeadlineScheduler, AsyncScheduler):
    """For engines that schedule a step while the step before it runs."""


_ADMITTED = frozenset({RequestStatus.WAITING, RequestStatus.PREEMPTED})
"""States from which vLLM admits a request. In the others the request waits for something."""


def _due(request: Request) -> tuple[int, float]:
    """vLLM's own order of requests."""
    return request.priority, request.arrival_time


def _left(request: Request) -> int:
    """Tokens that are not computed yet. Prefixes that the cache has are not known before vLLM admits the request."""
    return max(1, request.num_tokens - request.num_computed_tokens)


def _together(decoding: Iterable[Request]) -> Decodes:
    num_requests = context_tokens = 0
    objectives_s = set[float]()
    for request in decoding:
        num_requests += 1
        context_tokens += request.num_computed_tokens
        params = request.sampling_params
        if params and params.extra_args and (tpot_s := params.extra_args.get(TPOT_KEY)):
            objectives_s.add(tpot_s)
    return Decodes(num_requests, context_tokens, frozenset(objectives_s))


def _goes_on(request: Request) -> bool:
    """Whether a request needs a token of the next step after its last known one. An asynchronous scheduler has given
    the last one already, and not seen it yet.
    """
    num_pending = request.num_output_placeholders
    last = request.num_prompt_tokens + request.max_tokens
    return not num_pending or request.num_computed_tokens + 2 - num_pending < last


def _has_grammar(request: Request) -> bool:
    """Whether a request that waits for its grammar has it now."""
    return (
        request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        and request.structured_output_request is not None
        and request.structured_output_request.is_grammar_ready
    )

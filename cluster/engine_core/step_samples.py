"""How long an engine's steps take, and what they compute: samples for the latency models. Pure.

The sampler runs in the engine core's process, which alone knows both (kvtransfer/connector.py). A step begins when it
is scheduled, or when the step before it is done, if that is later or if the step goes on with requests of the one
before. So the samples of a busy engine add up to its time, including the time between two steps, whether the engine
schedules ahead of its outputs (asynchronously, as on GPUs) or not (as on CPUs). A request that gets one token counts as
decoding: the cost is the same whether that token is the prompt's last or the answer's. A request that gets more tokens
is a prompt, unless the tokens are guesses of speculative decoding.

Sampling a step costs time in proportion to its requests. So every step that computes prompts is sampled, and one in
DECODE_INTERVAL_S of the steps that only decode, which resemble each other. All other steps cost two reads of a clock.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from cluster.messages.reports import StepSample

DECODE_INTERVAL_S = 0.03
"""Seconds between two samples of steps that only decode. Longer makes the Scheduler learn more slowly; shorter costs
the engine time.
"""
TAKE_INTERVAL_S = 0.25
"""Seconds between two messages with samples, as between two reports of the worker. Longer makes what the Scheduler
learns older; shorter costs the engine's front more time.
"""
MAX_SAMPLES = 16
"""Samples per interval. More costs the engine time; fewer makes the Scheduler learn more slowly."""


class NewRequest(Protocol):
    req_id: str
    num_computed_tokens: int


class CachedRequests(Protocol):
    req_ids: list[str]
    num_computed_tokens: list[int]


class Step(Protocol):
    """The fields of vLLM's SchedulerOutput that are read here."""

    scheduled_new_reqs: Sequence[NewRequest]
    scheduled_cached_reqs: CachedRequests
    num_scheduled_tokens: Mapping[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: Mapping[str, Sequence[int]]


class _Work(NamedTuple):
    num_prefill: int
    attended: int
    num_decoding: int
    context_tokens: int


class _Pending(NamedTuple):
    """A step that is scheduled and not done."""

    at: float
    goes_on: bool
    """True if the step has requests of the step before."""
    work: _Work | None
    """None if the step is not sampled."""


class StepSampler:
    """Takes the time of steps, of which several may be scheduled ahead."""

    __slots__ = ("_decode_sampled_at", "_done_at", "_listener", "_pending", "_samples", "_taken_at", "last_step")

    def __init__(self) -> None:
        self._listener: Callable[[StepSample], None] | None = None
        self._pending: deque[_Pending] = deque()
        self._samples: list[tuple[int, int, int, int, float]] = []
        self._done_at = 0.0
        self._decode_sampled_at = 0.0
        self._taken_at = 0.0
        self.last_step = (0.0, 0.0)
        """When the last step that is done began and ended, in seconds."""

    def tell(self, listener: Callable[[StepSample], None]) -> None:
        """From now on, call the listener with each sample, as soon as its step is done."""
        self._listener = listener

    def scheduled(self, step: Step, now: float) -> None:
        num_requests = len(step.num_scheduled_tokens)
        goes_on = bool(step.scheduled_cached_reqs.req_ids)
        work = _work_of(step) if num_requests and self._is_sampled(step, num_requests, now) else None
        self._pending.append(_Pending(now, goes_on, work))

    def done(self, now: float) -> None:
        """The output of the oldest step under way has come."""
        if not self._pending:
            return
        step = self._pending.popleft()
        began_at = self._done_at if step.goes_on else max(step.at, self._done_at)
        if step.work is not None:
            sample = (*step.work, now - began_at)
            self._samples.append(sample)
            if self._listener is not None:
                self._listener(StepSample(*sample))
        self._done_at, self.last_step = now, (began_at, now)

    def take(self, now: float) -> list[tuple[int, int, int, int, float]] | None:
        """The samples since the last call. None if there are none, or if the last call was less than TAKE_INTERVAL_S
        ago.
        """
        if not self._samples or now - self._taken_at < TAKE_INTERVAL_S:
            return None
        taken, self._samples, self._taken_at = self._samples, [], now
        return taken

    def _is_sampled(self, step: Step, num_requests: int, now: float) -> bool:
        if len(self._samples) + len(self._pending) >= MAX_SAMPLES:
            return False
        num_guessed = sum(map(len, step.scheduled_spec_decode_tokens.values()))
        if step.total_num_scheduled_tokens - num_guessed > num_requests:
            return True
        if now - self._decode_sampled_at < DECODE_INTERVAL_S:
            return False
        self._decode_sampled_at = now
        return True


def samples_in(stats: Mapping[str, Any]) -> list[StepSample]:
    """The samples in the connector's statistics of one step, which have gone through a serializer."""
    return [StepSample(*values) for values in stats.get(STATS_KEY, ())]


STATS_KEY = "steps"
"""Key of the samples in the statistics of an engine's connector."""


def _work_of(step: Step) -> _Work:
    num_scheduled, guesses, cached = (
        step.num_scheduled_tokens,
        step.scheduled_spec_decode_tokens,
        step.scheduled_cached_reqs,
    )
    new_past_of = {request.req_id: request.num_computed_tokens for request in step.scheduled_new_reqs}
    context_tokens = sum(cached.num_computed_tokens) + sum(new_past_of.values()) + step.total_num_scheduled_tokens
    prompts = [name for name, num_new in num_scheduled.items() if num_new > 1 and name not in guesses]
    num_prefill = attended = 0
    if prompts:
        past_of = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True)) | new_past_of
        for name in prompts:
            num_new, past = num_scheduled[name], past_of[name]
            num_prefill += num_new
            attended += num_new * past + num_new * (num_new + 1) // 2
            context_tokens -= past + num_new
    return _Work(num_prefill, attended, len(num_scheduled) - len(prompts), context_tokens)

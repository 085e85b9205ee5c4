"""What a request would take of given workers: the computation of its prompt, the transfer of its KV blocks, and
decoding. The price of that is in router/placement/cost.py. Times are seconds.
"""

from typing import Final, final

from router.load.charge import Work
from router.load.worker_state import WorkerState
from router.placement.placement_input import USUAL, PlacementInput
from router.prediction.learned_latency import LatencyModels

HIGHEST_CLASS_SHARE: Final = 0.05
"""Share of a decode worker's KV memory that only the highest class may use. Higher has lower classes wait for memory
that is free; lower has interactive requests wait for memory that others hold.
"""

HIGHEST_RANK: Final = 0
"""Rank of the SLO class that is served first (`SloClass.rank`)."""


@final
class PrefillPart:
    """A prefill worker that would compute the prompt."""

    __slots__ = ("done_s", "seconds", "worker")

    def __init__(self, worker: WorkerState, seconds: float, done_s: float) -> None:
        self.worker = worker
        self.seconds = seconds
        """Time of the worker."""
        self.done_s = done_s
        """Time from now until the prompt is computed, after the prompts that are queued."""


def prefill_s(placement_input: PlacementInput, worker: WorkerState) -> float:
    """Time of the worker that the prompt takes alone."""
    hit = placement_input.hit(worker)
    seconds = worker.model.times.prefill_s(placement_input.num_prompt - hit, hit, worker.max_step_tokens)
    return seconds + placement_input.load_s(worker)


@final
class DecodePart:
    """A worker that would decode: what does not depend on the worker that computes the prompt."""

    __slots__ = (
        "batch",
        "context",
        "hit",
        "join_slowdown_s",
        "join_victims",
        "joined_step_s",
        "missing",
        "prefill_share",
        "queue_s",
        "running_context",
        "slack",
        "step_s",
        "worker",
    )

    def __init__(self, placement_input: PlacementInput, worker: WorkerState) -> None:
        now, running = placement_input.now, worker.running
        self.worker = worker
        self.hit = placement_input.hit(worker)
        self.slack = running.slack(now)
        self.batch = running.num + len(worker.inbound)
        """Requests that decode on the worker, and inbound ones."""
        self.running_context = running.context_tokens(now)
        """KV tokens of the running requests."""
        self.context = self.running_context + worker.inbound_prompt
        """KV tokens of `batch`."""
        self.queue_s = worker.queue_s(now) if worker.prefilling else 0.0
        self.prefill_share = worker.prefill_share.shares(now)
        self.step_s = running.step_s(now) if running.num else 0.0
        """Length of a step with the running requests; 0 where none runs."""
        times = worker.model.times
        size = placement_input.num_prompt + placement_input.outputs[1] / 2
        self.joined_step_s = times.decode_s(self.batch + placement_input.num_sequences, self.context + size)
        """Length of a step with `batch` and the new request."""
        self.join_slowdown_s = 0.0
        self.join_victims = 0.0
        if self.batch:
            self.join_slowdown_s = max(0.0, self.joined_step_s - times.decode_s(self.batch, self.context))
            self.join_victims = self.slack.victims(0.0, self.join_slowdown_s, placement_input.rank)
        share = 1.0 if placement_input.rank == HIGHEST_RANK else 1.0 - HIGHEST_CLASS_SHARE
        free = share * worker.kv_capacity - worker.kv_reserved - running.unknown_context
        self.missing = max(0.0, placement_input.kv_tokens - free)
        """KV tokens that the new request lacks."""

    def memory_wait_s(self) -> float:
        """Time until running requests that end have left enough KV blocks, in seconds."""
        if not self.missing:
            return 0.0
        for finish_s, freed in zip(self.slack.finish_s, self.slack.freed_tokens[1:], strict=True):
            if freed >= self.missing:
                return finish_s
        last = self.slack.finish_s[-1] if self.slack.finish_s else self.step_s
        freed = self.slack.freed_tokens[-1] or self.context or 1.0
        return max(last, 1.0) * max(1.0, self.missing / freed)

    def step_with(self, placement_input: PlacementInput, joins_s: float) -> float:
        """Length of a step once the request has joined.

        1. Running requests that will have ended are not counted.
        2. Inbound requests are counted for the part of the new request's decoding that they run beside it, unless
           requests that are yet to come are expected to take their place.
        """
        num_gone, freed = self.slack.finished_by(joins_s)
        joining = self.worker.inbound
        if not num_gone and not joining:
            return self.joined_step_s
        batch = self.batch - num_gone + float(placement_input.num_sequences)
        context = self.context - freed + placement_input.num_prompt + placement_input.outputs[1] / 2
        if joining and joins_s > 0.0:
            step_s = self.worker.model.times.decode_s(self.batch + 1, self.context)
            lasts_s = placement_input.outputs[1] * step_s
            num_ended = context_ended = 0.0
            for charge in joining.values():
                starts_s = max(0.0, charge.joins_at - placement_input.now)
                num_output = min(charge.lengths.quantile(USUAL), charge.most_tokens)
                beside_s = starts_s + num_output * step_s - joins_s
                if starts_s < joins_s and beside_s < lasts_s:
                    ended = 1.0 - max(0.0, beside_s) / lasts_s
                    num_ended += ended
                    context_ended += ended * charge.num_prompt
            num_follow = placement_input.others.arrivals_per_s * lasts_s / placement_input.others.num_decodes
            if num_ended > num_follow:
                batch -= num_ended - num_follow
                context -= context_ended * (1.0 - num_follow / num_ended)
        return self.worker.model.times.decode_s(max(1.0, batch), max(0.0, context))


def handoff_s(
    placement_input: PlacementInput, prefill: WorkerState, decode: WorkerState, models: LatencyModels, ready_s: float
) -> float:
    """Time from now until the handoff is done, in seconds. `ready_s`: time until the prompt is computed."""
    num_bytes = (placement_input.num_prompt - placement_input.hit(decode)) * prefill.kv_bytes_per_token
    seconds = models.transfer(prefill.worker, decode.worker, decode.links.get(prefill.worker)).seconds(num_bytes)
    free_s = max(prefill.link_free_at, decode.link_free_at) - placement_input.now
    return max(ready_s, free_s) + seconds


def work_alone(
    placement_input: PlacementInput, worker: WorkerState, hit: int, queue_s: float, context_tokens: float, step_s: float
) -> Work:
    """What a request takes of a worker that computes the prompt and decodes.

    `context_tokens` and `step_s`: KV tokens of the running requests, and the length of a step with them.
    """
    batch, most = worker.running.num, worker.max_step_tokens
    num_new = placement_input.num_prompt - hit
    seconds = worker.model.times.prefill_s(num_new, hit, most, batch, int(context_tokens))
    seconds += placement_input.load_s(worker)
    stall_s = max(0.0, seconds - num_chunks(num_new, most, batch) * step_s) if batch else seconds
    return Work(seconds, stall_s, queue_s + seconds)


def unpriced_work(
    placement_input: PlacementInput, prefill: WorkerState | None, decode: WorkerState | None, models: LatencyModels
) -> Work:
    """What a request takes of workers that were chosen without a price."""
    now = placement_input.now
    if prefill is not None and decode is not None:
        seconds = prefill_s(placement_input, prefill)
        return Work(
            seconds, seconds, handoff_s(placement_input, prefill, decode, models, prefill.queue_s(now) + seconds)
        )
    worker = decode or prefill
    assert worker is not None
    hit, running = placement_input.hit(worker), worker.running
    return work_alone(
        placement_input, worker, hit, worker.queue_s(now), running.context_tokens(now), running.step_s(now)
    )


def num_chunks(num_new: int, max_step_tokens: int, batch: int) -> int:
    """Steps that a prompt takes beside a decoding batch (Sarathi-Serve's stall-free batching)."""
    return -(-num_new // max(1, max_step_tokens - batch))

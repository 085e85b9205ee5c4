"""What a request would take of given workers: the computation of its prompt, the transfer of its KV blocks, and
decoding. The price of that is in router/placement/cost.py. Times are seconds.
"""

from math import inf
from typing import Final, final

from router.load.charge import Work
from router.load.decode_slack import DecodeSlack
from router.load.worker_state import WorkerState
from router.placement.placement_input import USUAL, PlacementInput
from router.prediction.learned_latency import LatencyModels
from router.prediction.long_steps import prompt_steps

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
    """Time of the worker that the prompt takes, beside the requests that decode there and those that will."""
    hit, batch = placement_input.hit(worker), worker.num_crowded
    num_new = placement_input.num_prompt - hit
    steps = worker.prompt_steps(num_new, (placement_input.num_prompt + hit) / 2)
    if batch:
        context = worker.running.context_tokens(placement_input.now) + worker.inbound_prompt
        seconds = worker.model.times.prefill_s(num_new, hit, steps.chunk, batch, int(context))
        seconds += num_chunks(num_new, steps.chunk) * steps.num_saving * worker.running.crowded_step_s
    else:
        seconds = worker.model.times.prefill_s(num_new, hit, steps.chunk)
    return seconds + placement_input.load_s(worker)


def slowdown_beside_decodes(placement_input: PlacementInput, worker: WorkerState) -> float:
    """How many times faster the worker computes a long prompt alone than beside one request like this one that decodes.
    Tokens of a prompt are nearly free while the weights are read for a decode, so it is close to 1 where steps have
    room for the knee of the step model (router/prediction/step_model.py), and far above where they have not.
    """
    times, bound, most = worker.model.times, worker.model.kind.bound, worker.max_step_tokens
    decode_s, tpot_s = times.decode_s(1, placement_input.num_prompt), placement_input.slo_tpot_s
    steps = prompt_steps(times, bound, 1, decode_s, tpot_s, most, 0)
    beside_s = times.prefill_s(steps.chunk, 0, steps.chunk, 1, placement_input.num_prompt) + steps.num_saving * decode_s
    return most / times.prefill_s(most, 0, most) * beside_s / steps.chunk


def prefill_part(placement_input: PlacementInput, worker: WorkerState) -> PrefillPart:
    seconds = prefill_s(placement_input, worker)
    queue_s = worker.prompts.seconds_before(placement_input.due_at, placement_input.now)
    return PrefillPart(worker, seconds, queue_s + seconds)


def stall_s(placement_input: PlacementInput, worker: WorkerState, seconds: float) -> float:
    """Part of the `seconds` of `prefill_s` in which the worker gives no token to the requests that decode there."""
    hit = placement_input.hit(worker)
    num_new = placement_input.num_prompt - hit
    steps = worker.prompt_steps(num_new, (placement_input.num_prompt + hit) / 2)
    step_s = worker.running.crowded_step_s or worker.running.step_s(placement_input.now)
    stalled_s = seconds - num_chunks(num_new, steps.chunk) * (1 + steps.num_saving) * step_s
    return stalled_s if stalled_s > 0.0 else 0.0


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
        "queue_s",
        "slack",
        "stall_share",
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
        self.context = running.context_tokens(now) + worker.inbound_prompt
        """KV tokens of `batch`."""
        self.queue_s = worker.prompts.seconds_before(placement_input.due_at, now) if worker.prompts.charges else 0.0
        """Time until the worker begins with the prompt, if it computes it."""
        self.stall_share = worker.stall_share.shares(now)
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
        return _memory_wait_s(self.slack, self.missing, self.context) if self.missing else 0.0

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
            num_follow = placement_input.others.arrivals_per_s * lasts_s / placement_input.others.num_workers
            if num_ended > num_follow:
                batch -= num_ended - num_follow
                context -= context_ended * (1.0 - num_follow / num_ended)
        return self.worker.model.times.decode_s(max(1.0, batch), max(0.0, context))

    def longest_step_s(self, placement_input: PlacementInput, step_s: float) -> float:
        """Longest step with prompts beside the request, where a step without prompts takes `step_s`; inf where nothing
        bounds it.
        """
        if not self.worker.has_short_steps:
            return inf
        bound = self.worker.model.kind.bound
        objectives = (placement_input.slo_tpot_s, self.worker.running.binding_tpot_s)
        return bound.longest_step_s(step_s, bound.binding_tpot_s(objectives, step_s))


def prompt_memory_wait_s(placement_input: PlacementInput, worker: WorkerState) -> float:
    """Time until a worker that is to hand the request over has KV blocks for its prompt, in seconds."""
    missing = worker.kv_reserved + worker.running.unknown_context + placement_input.num_prompt - worker.kv_capacity
    if missing <= 0.0:
        return 0.0
    return _memory_wait_s(worker.running.slack(placement_input.now), missing, worker.kv_reserved)


def _memory_wait_s(slack: DecodeSlack, missing: float, held: float) -> float:
    """Time until running requests that end have left `missing` KV tokens. `held`: KV tokens of other requests."""
    for finish_s, freed in zip(slack.finish_s, slack.freed_tokens[1:], strict=True):
        if freed >= missing:
            return finish_s
    last = slack.finish_s[-1] if slack.finish_s else 0.0
    return max(last, 1.0) * max(1.0, missing / (slack.freed_tokens[-1] or held or 1.0))


def handoff_s(
    placement_input: PlacementInput, prefill: WorkerState, decode: WorkerState, models: LatencyModels, ready_s: float
) -> float:
    """Time from now until the handoff is done, in seconds. `ready_s`: time until the prompt is computed."""
    num_bytes = (placement_input.num_prompt - placement_input.hit(decode)) * prefill.kv_bytes_per_token
    link_class = prefill.node_class, decode.node_class, prefill.host == decode.host
    link = models.transfers.link(prefill.worker, decode.worker, decode.links.get(prefill.worker), link_class)
    free_s = max(prefill.link_free_at, decode.link_free_at) - placement_input.now
    return max(ready_s, free_s) + link.seconds(num_bytes)


def work_alone(placement_input: PlacementInput, worker: WorkerState, queue_s: float) -> Work:
    """What a request takes of a worker that computes the prompt and decodes."""
    seconds = prefill_s(placement_input, worker)
    return Work(seconds, stall_s(placement_input, worker, seconds), queue_s + seconds)


def unpriced_work(
    placement_input: PlacementInput, prefill: WorkerState | None, decode: WorkerState | None, models: LatencyModels
) -> Work:
    """What a request takes of workers that were chosen without a price."""
    now = placement_input.now
    if prefill is not None and decode is not None:
        part = prefill_part(placement_input, prefill)
        stalled_s = stall_s(placement_input, prefill, part.seconds)
        return Work(part.seconds, stalled_s, handoff_s(placement_input, prefill, decode, models, part.done_s))
    worker = decode or prefill
    assert worker is not None
    return work_alone(placement_input, worker, worker.prompts.seconds_before(placement_input.due_at, now))


def num_chunks(num_new: int, chunk_tokens: int) -> int:
    """Steps that a prompt takes (Sarathi-Serve's stall-free batching)."""
    return -(-num_new // chunk_tokens)

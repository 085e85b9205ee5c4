"""What one way to run a request would cost: its predicted TTFT and TPOT, and the harm to those that are there already.

The cost is an expected number of requests outside their SLO, the new one and its victims, plus small terms that choose
among ways which are all good: the cheapest in engine time first. Times are seconds.
"""

from typing import Final, final

from cluster.messages.ids import Path
from router.load.decode_slack import SLACK_SOFTNESS, class_weight, logistic
from router.load.prefill_share import LONG_S, SHORT_S, Shares, lately, share_over
from router.load.prefill_share import MOST as MOST_DUTY
from router.load.worker_state import WorkerState
from router.placement.option import Harm, Option, Times, Workers
from router.placement.placement_input import USUAL, Others, PlacementInput
from router.prediction.latency import LatencyModels

MARGIN: Final = 0.9
"""A prediction of this share of the objective counts as missed half."""
SOFTNESS: Final = 0.2
"""Of that threshold, as a share of the objective: predictions are not exact."""
VICTIM_WEIGHT: Final = 1.0
FUTURE_WEIGHT: Final = 1.0
FUTURE_DECODES_SHARE: Final = 0.3
"""Of the requests that would decode beside a prompt later on, that are taken to find no better worker by then."""
WORTH_HOLDING: Final = 0.02
"""Risk that holding the first token back takes away, for it to be held back."""
SHORT_GAP: Final = 0.02
"""Of the TPOT objective: what the gap after the first token adds to a TPOT may be so much without a thought."""
TTFT_WEIGHT: Final = 0.3
TPOT_WEIGHT: Final = 0.1
ENGINE_TIME_WEIGHT: Final = 1.0
USE_FACTOR: Final = 1.5
"""Time that is not taken from those who decode counts by so many times the share of such workers that is busy: what
nobody else wants costs nothing.
"""

HIGHEST_CLASS_SHARE: Final = 0.05
"""Of a decode worker's KV memory, that only the highest class may use."""


_HIGHEST_RANK: Final = 0
_PREFILL_DECODE: Final = Path.PREFILL_DECODE
_DECODE: Final = Path.DECODE
_PREFILL: Final = Path.PREFILL


@final
class PrefillPart:
    """Computing the prompt on a prefill worker."""

    __slots__ = ("done_s", "seconds", "worker")

    def __init__(self, worker: WorkerState, seconds: float, done_s: float) -> None:
        self.worker = worker
        self.seconds = seconds
        """Of the worker's own time."""
        self.done_s = done_s
        """From now, behind what is queued."""


def prefill_s(ask: PlacementInput, worker: WorkerState) -> float:
    """Of the worker's own time, with nothing beside it."""
    hit = ask.hit(worker)
    seconds = worker.model.times.prefill_s(ask.num_prompt - hit, hit, worker.max_step_tokens)
    return seconds + ask.load_s(worker)


@final
class DecodePart:
    """Decoding on a worker, whoever prefills: what does not depend on that."""

    __slots__ = (
        "batch",
        "context",
        "decoding_context",
        "duty",
        "hit",
        "join_slowdown_s",
        "join_victims",
        "missing",
        "outlook",
        "queue_s",
        "step_s",
        "with_it_s",
        "worker",
    )

    def __init__(self, ask: PlacementInput, worker: WorkerState) -> None:
        now = ask.now
        self.worker = worker
        self.hit = ask.hit(worker)
        self.outlook = worker.outlook(now)
        self.batch = worker.num_decoding + len(worker.inbound)
        self.decoding_context = worker.context_tokens(now)
        self.context = self.decoding_context + worker.inbound_prompt
        self.queue_s = worker.queue_s(now) if worker.prefilling else 0.0
        self.duty = worker.duty.shares(now)
        self.step_s = worker.step_s(now) if worker.num_decoding else 0.0
        times = worker.model.times
        size = ask.num_prompt + ask.outputs[1] / 2
        self.with_it_s = times.decode_s(self.batch + ask.num_sequences, self.context + size)
        """What a token takes with it and with everybody who is there or expected."""
        self.join_slowdown_s = 0.0
        self.join_victims = 0.0
        if self.batch:
            self.join_slowdown_s = max(0.0, self.with_it_s - times.decode_s(self.batch, self.context))
            self.join_victims = self.outlook.victims(0.0, self.join_slowdown_s, ask.rank)
        share = 1.0 if ask.rank == _HIGHEST_RANK else 1.0 - HIGHEST_CLASS_SHARE
        free = share * worker.kv_capacity - worker.kv_reserved - worker.unknown_context
        self.missing = max(0.0, ask.kv_tokens - free)

    def memory_wait_s(self) -> float:
        """Until residents that end have left enough KV blocks."""
        if not self.missing:
            return 0.0
        for finish_s, freed in zip(self.outlook.finish_s, self.outlook.freed_tokens[1:], strict=True):
            if freed >= self.missing:
                return finish_s
        last = self.outlook.finish_s[-1] if self.outlook.finish_s else self.step_s
        freed = self.outlook.freed_tokens[-1] or self.context or 1.0
        return max(last, 1.0) * max(1.0, self.missing / freed)

    def step_with(self, ask: PlacementInput, joins_s: float) -> float:
        """What a token takes once the request has joined: beside residents that have not ended by then, and those that
        are yet to join, but for those that will have ended too and that nobody follows.
        """
        num_gone, freed = self.outlook.finished_by(joins_s)
        joining = self.worker.inbound
        if not num_gone and not joining:
            return self.with_it_s
        batch = self.batch - num_gone + float(ask.num_sequences)
        context = self.context - freed + ask.num_prompt + ask.outputs[1] / 2
        if joining and joins_s > 0.0:
            step_s = self.worker.model.times.decode_s(self.batch + 1, self.context)
            lasts_s = ask.outputs[1] * step_s
            num_ended = context_ended = 0.0
            for charge in joining.values():
                starts_s = max(0.0, charge.joins_at - ask.now)
                num_output = min(charge.lengths.quantile(USUAL), charge.most_tokens)
                beside_s = starts_s + num_output * step_s - joins_s
                if starts_s < joins_s and beside_s < lasts_s:
                    ended = 1.0 - max(0.0, beside_s) / lasts_s
                    num_ended += ended
                    context_ended += ended * charge.num_prompt
            num_follow = ask.others.arrivals_per_s * lasts_s / ask.others.num_decodes
            if num_ended > num_follow:
                batch -= num_ended - num_follow
                context -= context_ended * (1.0 - num_follow / num_ended)
        return self.worker.model.times.decode_s(max(1.0, batch), max(0.0, context))


def over_link(
    ask: PlacementInput, prefill: WorkerState, decode: WorkerState, models: LatencyModels, ready_s: float
) -> float:
    """When the handoff is done, from now."""
    num_bytes = (ask.num_prompt - ask.hit(decode)) * prefill.kv_bytes_per_token
    seconds = models.transfer(prefill.worker, decode.worker, decode.links.get(prefill.worker)).seconds(num_bytes)
    free_s = max(prefill.link_free_at, decode.link_free_at) - ask.now
    return max(ready_s, free_s) + seconds


def hand_over(ask: PlacementInput, prefill: PrefillPart, decode: DecodePart, models: LatencyModels) -> Option:
    """Path P->D. The first token, which the prefill worker has, is released at once, unless that would make the gap
    before the second one too long for an answer of so few tokens: then with the second one.
    """
    done_s = prefill.done_s
    joins_s = over_link(ask, prefill.worker, decode.worker, models, done_s)
    if decode.missing:
        joins_s += decode.memory_wait_s()
    step_s = decode.step_with(ask, joins_s)
    # Prompts that the decode worker computes itself are finished before it goes on with a newcomer.
    gap_s = joins_s - done_s + max(0.0, decode.queue_s - joins_s) + step_s
    victims, use = decode.join_victims, ask.others.prefill_use
    if prefill.worker.residents:
        victims += prefill.worker.outlook(ask.now).victims(prefill.seconds, 0.0, ask.rank)
    slowdown_s = decode.join_slowdown_s * ask.outputs[1]
    harm = Harm(
        victims,
        _later_prompts(ask, prefill.seconds, done_s, use, ask.others.num_prefills),
        prefill.seconds + slowdown_s,
        _wanted(prefill.seconds, use) + slowdown_s,
    )
    workers = Workers(_PREFILL_DECODE, prefill.worker, decode.worker)
    held = Times(done_s + gap_s, 0.0, step_s, decode.duty)
    if not ask.has_early_token or prefill.worker.leaves_tokens:
        return _priced(ask, workers, held, harm, models)
    at_once = _priced(ask, workers, Times(done_s, gap_s, step_s, decode.duty), harm, models)
    if gap_s < SHORT_GAP * ask.slo_tpot_s * (ask.outputs[0] - 1.0) or at_once.risk < WORTH_HOLDING:
        return at_once
    later = _priced(ask, workers, held, harm, models, holds_first=True)
    return later if later.risk + WORTH_HOLDING < at_once.risk else at_once


def alone(
    ask: PlacementInput,
    decode: DecodePart,
    models: LatencyModels,
    *,
    is_prefill: bool = False,
    peer: WorkerState | None = None,
) -> Option:
    """The whole request on one worker: path D, or path P on a prefill worker. `peer`: a decode worker; how long steps
    are that decode is known from it, where prefill workers have hardly had any.
    """
    worker, hit, batch = decode.worker, decode.hit, decode.worker.num_decoding
    num_new, most = ask.num_prompt - hit, worker.max_step_tokens
    seconds = worker.model.times.prefill_s(num_new, hit, most, batch, int(decode.decoding_context))
    seconds += ask.load_s(worker)
    stall_s = max(0.0, seconds - num_chunks(num_new, most, batch) * decode.step_s) if batch else 0.0
    done_s = decode.queue_s + seconds + decode.step_s / 2
    if decode.missing:
        done_s += decode.memory_wait_s()
    step_s = decode.step_with(ask, done_s)
    if peer is not None:
        context = decode.context + ask.num_prompt + ask.outputs[1] / 2
        step_s = max(step_s, peer.model.times.decode_s(decode.batch + ask.num_sequences, context))
    victims = decode.outlook.victims(stall_s, decode.join_slowdown_s, ask.rank)
    if worker.inbound:
        victims += _inbound_victims(ask, decode, done_s - seconds, done_s)
    others = ask.others
    use, num_workers = lately(decode.duty), others.num_decodes
    if is_prefill:
        use, num_workers = others.prefill_use, others.num_prefills
    later_prompts = _later_prompts(ask, seconds, decode.queue_s + seconds, use, num_workers)
    future_victims = FUTURE_DECODES_SHARE * _later_decodes(ask, decode, step_s, seconds) + later_prompts
    slowdown_s = decode.join_slowdown_s * ask.outputs[1]
    if batch:
        harm = Harm(victims, future_victims, stall_s + slowdown_s, stall_s + slowdown_s)
    else:
        wanted_s = seconds if is_prefill else _wanted(seconds, others.decode_use)
        harm = Harm(victims, future_victims, seconds + slowdown_s, wanted_s + slowdown_s)
    workers = Workers(_PREFILL, worker, None) if is_prefill else Workers(_DECODE, None, worker)
    return _priced(ask, workers, Times(done_s, 0.0, step_s, decode.duty), harm, models)


def num_chunks(num_new: int, max_step_tokens: int, batch: int) -> int:
    """Steps that a prompt takes beside a decoding batch (Sarathi-Serve's stall-free batching)."""
    return -(-num_new // max(1, max_step_tokens - batch))


def stretched(step_s: float, num_output: float, duty: Shares) -> float:
    """TPOT of so many tokens on a worker that spends these shares of its time on prompts."""
    return step_s / (1.0 - share_over(duty, num_output * step_s))


def _wanted(seconds: float, use: float) -> float:
    return min(1.0, USE_FACTOR * use) * seconds


def _priced(
    ask: PlacementInput, workers: Workers, times: Times, harm: Harm, models: LatencyModels, *, holds_first: bool = False
) -> Option:
    way = Option(workers, times, harm, holds_first=holds_first)
    way.engine_ttft_s = ask.age_s + times.ttft_s
    way.ttft_s = ttft_s = models.bias.ttft(way.path).corrected(way.engine_ttft_s)
    late = _lateness(ttft_s, ask.slo_ttft_s)
    slow = _slowness(ask, way, times, models)
    way.risk = risk = 1.0 - (1.0 - late) * (1.0 - slow)
    way.cost = (
        risk
        + VICTIM_WEIGHT * harm.victims
        + FUTURE_WEIGHT * harm.future_victims
        + (TTFT_WEIGHT * ttft_s + ENGINE_TIME_WEIGHT * harm.wanted_s) / ask.slo_ttft_s
        + TPOT_WEIGHT * way.tpot_s / ask.slo_tpot_s
    )
    return way


def _slowness(ask: PlacementInput, way: Option, times: Times, models: LatencyModels) -> float:
    """Probability that the TPOT objective is missed. Notes the TPOT of an answer of median length, and what the engine
    models alone say of it. One token has none.
    """
    bias, gap_s, objective_s = models.bias.tpot(way.path), times.gap_s, ask.slo_tpot_s
    short, usual, long = ask.outputs
    way.engine_tpot_s = stretched(times.step_s, usual, times.duty)
    way.tpot_s = _with_gap(bias.corrected(way.engine_tpot_s), gap_s, usual)
    shortest_s = _with_gap(bias.corrected(stretched(times.step_s, short, times.duty)), gap_s, short)
    longest_s = _with_gap(bias.corrected(stretched(times.step_s, long, times.duty)), gap_s, long)
    total = _slow(shortest_s, objective_s, short) + _slow(way.tpot_s, objective_s, usual)
    return (total + _slow(longest_s, objective_s, long)) / 3.0


def _with_gap(tpot_s: float, gap_s: float, num_output: float) -> float:
    if num_output <= 1.0:
        return tpot_s
    return tpot_s + (gap_s / (num_output - 1.0) if num_output > 2.0 else gap_s)


def _slow(tpot_s: float, objective_s: float, num_output: float) -> float:
    if num_output <= 1.0:
        return 0.0
    return _lateness(tpot_s, objective_s)


def _inbound_victims(ask: PlacementInput, decode: DecodePart, from_s: float, to_s: float) -> float:
    """Requests that join before the prompt is computed are stalled by it, or by the rest of it."""
    total = 0.0
    for charge in decode.worker.inbound.values():
        stall_s = to_s - max(from_s, charge.joins_at - ask.now)
        num_gaps = min(charge.lengths.quantile(USUAL), charge.most_tokens) - 1.0
        if stall_s <= 0.0 or num_gaps <= 0.0:
            continue
        budget_s = charge.slo_tpot_s * num_gaps
        slack_s = budget_s - num_gaps * decode.step_s
        softness_s = SLACK_SOFTNESS * budget_s
        weight = class_weight(charge.rank, ask.rank)
        total += weight * (logistic((stall_s - slack_s) / softness_s) - logistic(-slack_s / softness_s))
    return total


def _later_decodes(ask: PlacementInput, decode: DecodePart, step_s: float, seconds: float) -> float:
    """Victims among requests that are yet to come and to decode there, taken to be like this one: for as long as one of
    them decodes, a larger share of the time goes to prompts. A worker bears that up to a point, and then all are late.
    Where other workers are free they go there.
    """
    others, duty = ask.others, decode.duty
    if not others.decode_use:
        return 0.0
    short, usual, long = ask.outputs
    total = _later_slow(ask, others, duty, short, step_s, seconds)
    total += _later_slow(ask, others, duty, usual, step_s, seconds)
    total += _later_slow(ask, others, duty, long, step_s, seconds)
    return others.decode_use * total / others.num_decodes / 3.0


def _later_slow(
    ask: PlacementInput, others: Others, duty: Shares, num_output: float, step_s: float, seconds: float
) -> float:
    """Of those that generate so many tokens."""
    horizon_s = min(max(num_output * step_s, SHORT_S), LONG_S)
    before = share_over(duty, horizon_s)
    after = min(MOST_DUTY, before + seconds / horizon_s)
    was_s, will_be_s = step_s / (1.0 - before), step_s / (1.0 - after)
    more = others.arrivals_per_s * _later(was_s, will_be_s, ask.slo_tpot_s)
    for higher in others.higher:
        more += higher.weighed_per_s * _later(was_s, will_be_s, higher.slo_tpot_s)
    return horizon_s * more


def _later_prompts(ask: PlacementInput, seconds: float, done_s: float, use: float, num_workers: int) -> float:
    """Victims among requests that are yet to come and to be prefilled there, taken to be like this one: those that come
    while its queue lasts find it longer by this prompt, unless another worker has nothing to do. Who is of its class
    may wait or go elsewhere, and finds half of the queue on average; a higher class needs room all the time. `use`:
    share of the time that prompts took there lately; `num_workers`: among which those who come have the choice.
    """
    others, found_s = ask.others, done_s / 2
    total = others.arrivals_per_s * _later(found_s + seconds / 2, found_s + seconds, ask.slo_ttft_s)
    for higher in others.higher:
        total += higher.weighed_per_s * _later(done_s, done_s + seconds, higher.slo_ttft_s)
    return use * total / num_workers * done_s


def _lateness(seconds: float, objective_s: float) -> float:
    """Probability that an objective is missed by what is predicted to take so long. What is hopeless is so exactly."""
    return logistic((seconds / objective_s - MARGIN) / SOFTNESS)


def _later(was_s: float, will_be_s: float, objective_s: float) -> float:
    """By how much what takes longer than it did is likelier to miss its objective."""
    return _lateness(will_be_s, objective_s) - _lateness(was_s, objective_s)

"""What an option costs: its predicted TTFT and TPOT, its risk, and the harm that it does to other requests.

The cost is the expected number of requests outside their SLO: the new one, its victims among running requests and among
those to come, and requests that find no KV memory. Small terms choose among options which are all good: the one with
the least engine time first. Times are seconds.

A prefix hit shortens the prompt that is computed (router/placement/work.py). Two small terms keep conversations where
they are (COMPUTING_WEIGHT, LEAVING_WEIGHT).
"""

from math import hypot, inf, sqrt
from typing import Final

from cluster.messages.ids import Path
from router.load.charge import Work
from router.load.decode_slack import class_weight, logistic
from router.load.prefill_share import LONG_S, SHORT_S, Shares, share_over
from router.load.prefill_share import MOST as MOST_SHARE
from router.load.prompt_demand import overtaking_s
from router.load.worker_state import WorkerState
from router.placement.option import Harm, Option, Times, Workers
from router.placement.placement_input import USUAL, PlacementInput
from router.placement.work import DecodePart, PrefillPart, handoff_s, prompt_memory_wait_s, stall_s, work_alone
from router.prediction.learned_latency import LatencyModels

MARGIN: Final = 0.9
"""Share of a TTFT objective at which a prediction counts as missed with probability 0.5. Below 1, since later requests
make queues longer more often than shorter. Lower avoids options that would have been good; higher trusts predictions
that are often too short.
"""
TPOT_MARGIN: Final = 1.0
"""The same for a TPOT objective, which engines keep by the length of their steps."""
OVERTAKING_SOFTNESS: Final = 0.8
"""Softness of a TTFT for each standard deviation of the time that overtaking prompts take. A logistic distribution has
0.55; decodes that join meanwhile add to it. Higher refuses long prompts that would have been in time; lower computes
long prompts that are late.
"""
VICTIM_WEIGHT: Final = 1.0
"""Cost of one expected victim. Higher has requests wait rather than harm others; lower lets them in at others' cost."""
FUTURE_WEIGHT: Final = 1.0
"""Cost of one expected victim among requests that are yet to come. Higher keeps room that may stay unused; lower lets
one request take the room of the next ones.
"""
FUTURE_DECODES_SHARE: Final = 0.3
"""Share of the requests that would decode beside a prompt later on and find no better worker. Higher keeps prompts away
from decode workers; lower fills decode workers with prompts.
"""
WORTH_HOLDING: Final = 0.02
"""Risk that holding the first token back must take away. Higher sends first tokens before a long gap; lower delays
first tokens for little.
"""
SHORT_GAP: Final = 0.02
"""Share of the TPOT objective that the gap after the first token may add to a TPOT without a second option being
priced. Higher misses requests whose first token should be held back; lower prices more options.
"""
TTFT_WEIGHT: Final = 0.3
"""Cost of a TTFT as long as the objective. Higher spends engine time on TTFTs that are good already; lower accepts a
longer TTFT for little engine time.
"""
TPOT_WEIGHT: Final = 0.1
"""Cost of a TPOT as long as the objective. Higher spends engine time on TPOTs that are good already; lower accepts a
longer TPOT for little engine time.
"""
ENGINE_TIME_WEIGHT: Final = 1.0
"""Cost of engine time as long as the TTFT objective. Higher accepts longer times for little engine time; lower spends
engine time that later requests need.
"""
COMPUTING_WEIGHT: Final = 0.05
"""Cost of computing a whole prompt, beside the time that it takes: the worker that computes it has its KV blocks a
second time, and comes to hold the conversation. A prompt of which the worker holds a share costs so much less there.
Higher keeps conversations on busy workers; lower computes prompts again for little.
"""
LEAVING_WEIGHT: Final = 0.01
"""Cost of handing a prompt over that a worker holds as a whole which could take the request alone. A share of the
prompt costs as much less. Higher keeps conversations on workers whose steps are slow; lower moves them between the
paths for differences that no client notices.
"""
USE_FACTOR: Final = 1.5
"""Time of a worker with no running requests costs this multiple of the share of such workers that is busy, at most 1:
time that no other request wants costs nothing. Higher saves engine time on idle services; lower spends it on busy ones.
"""

_PREFILL_DECODE: Final = Path.PREFILL_DECODE
_DECODE: Final = Path.DECODE
_PREFILL: Final = Path.PREFILL


def hand_over(
    placement_input: PlacementInput,
    prefill: PrefillPart,
    decode: DecodePart,
    models: LatencyModels,
    left_share: float = 0.0,
) -> Option:
    """Path P->D. The prefill worker has the first token. The token is released at once, unless the gap before the
    second token would be too long for a short answer: then both tokens are released together. `left_share`: share of
    the prompt that a worker holds which could take the whole request.
    """
    wait_s = prompt_memory_wait_s(placement_input, prefill.worker)
    done_s = prefill.done_s + wait_s
    joins_s = handoff_s(placement_input, prefill.worker, decode.worker, models, done_s)
    work = Work(prefill.seconds, stall_s(placement_input, prefill.worker, prefill.seconds), joins_s)
    if decode.missing:
        joins_s += decode.memory_wait_s()
    step_s = decode.step_with(placement_input, joins_s)
    # The decode worker finishes the prompts that it computes itself before it decodes a new request.
    gap_s = joins_s - done_s + max(0.0, decode.queue_s - joins_s) + step_s
    victims = decode.join_victims
    if prefill.worker.running.charges:
        victims += prefill.worker.running.slack(placement_input.now).victims(work.stall_s, 0.0, placement_input.rank)
    victims += _overtaken(placement_input, prefill.worker, prefill.seconds, models)
    slowdown_s = decode.join_slowdown_s * placement_input.outputs[1]
    future_victims = _later_prompts(placement_input, prefill.worker, prefill.seconds, done_s, models)
    future_victims += placement_input.others.kv_price * placement_input.kv_tokens
    if prefill.worker.running.num:
        future_victims += FUTURE_DECODES_SHARE * _later_decodes(
            placement_input, prefill.worker, prefill.worker.running.last_step_s, work.stall_s, models
        )
    harm = Harm(
        victims,
        future_victims,
        prefill.seconds + slowdown_s,
        _wanted(prefill.seconds, placement_input.others.prompt_use) + slowdown_s,
    )
    workers = Workers(_PREFILL_DECODE, prefill.worker, decode.worker)
    longest_s = decode.longest_step_s(placement_input, step_s)
    later_s = _overtaking_s(placement_input, prefill.worker, prefill.done_s)
    share, softness = decode.stall_share, decode.worker.model.kind.bound.softness
    held_wait_s = wait_s + decode.memory_wait_s()
    held = Times(done_s + later_s + gap_s, later_s, 0.0, step_s, share, held_wait_s, longest_s, softness)
    moved = LEAVING_WEIGHT * left_share
    if not placement_input.has_early_token or prefill.worker.leaves_tokens:
        return _priced(placement_input, Option(workers, work, held, harm), held, harm, models, moved)
    soon = Times(done_s + later_s, later_s, gap_s, step_s, share, wait_s, longest_s, softness)
    at_once = _priced(placement_input, Option(workers, work, soon, harm), soon, harm, models, moved)
    short_gap_s = SHORT_GAP * placement_input.slo_tpot_s * (placement_input.outputs[0] - 1.0)
    if gap_s < short_gap_s or at_once.risk < WORTH_HOLDING:
        return at_once
    later = _priced(placement_input, Option(workers, work, held, harm, holds_first=True), held, harm, models, moved)
    return later if later.risk + WORTH_HOLDING < at_once.risk else at_once


def alone(
    placement_input: PlacementInput,
    decode: DecodePart,
    models: LatencyModels,
    *,
    is_prefill: bool = False,
    peer: WorkerState | None = None,
    slowdown: float = 1.0,
) -> Option:
    """The whole request on one worker: path D, or path P on a prefill worker. `peer`: a decode worker, whose
    latency model knows long decode steps where a prefill worker has run few of them. `slowdown`: how many times slower
    the worker computes the prompts of others while the request decodes.
    """
    worker, batch = decode.worker, decode.worker.running.num
    work = work_alone(placement_input, worker, decode.queue_s)
    seconds, stalled_s = work.prefill_s, work.stall_s if batch else 0.0
    done_s = decode.queue_s + seconds + decode.step_s / 2
    later_s = _overtaking_s(placement_input, worker, done_s)
    done_s += later_s
    if decode.missing:
        done_s += decode.memory_wait_s()
    step_s = decode.step_with(placement_input, done_s)
    if peer is not None:
        context = decode.context + placement_input.num_prompt + placement_input.outputs[1] / 2
        step_s = max(step_s, peer.model.times.decode_s(decode.batch + placement_input.num_sequences, context))
    victims = decode.slack.victims(stalled_s, decode.join_slowdown_s, placement_input.rank)
    if worker.inbound:
        victims += _inbound_victims(placement_input, worker, done_s - seconds, done_s, models.bias.slack_softness)
    victims += _overtaken(placement_input, worker, seconds, models)
    others = placement_input.others
    later_prompts = _later_prompts(placement_input, worker, seconds, decode.queue_s + seconds, models)
    future_victims = (
        FUTURE_DECODES_SHARE * _later_decodes(placement_input, worker, step_s, work.stall_s, models) + later_prompts
    )
    future_victims += others.kv_price * placement_input.kv_tokens
    slowdown_s = decode.join_slowdown_s * placement_input.outputs[1]
    if batch:
        harm = Harm(victims, future_victims, stalled_s + slowdown_s, stalled_s + slowdown_s)
    else:
        taken_s = seconds + (1.0 - 1.0 / slowdown) * placement_input.outputs[1] * step_s
        harm = Harm(victims, future_victims, taken_s + slowdown_s, _wanted(taken_s, others.prompt_use) + slowdown_s)
    workers = Workers(_PREFILL, worker, None) if is_prefill else Workers(_DECODE, None, worker)
    longest_s = decode.longest_step_s(placement_input, step_s)
    softness = worker.model.kind.bound.softness
    times = Times(done_s, later_s, 0.0, step_s, decode.stall_share, decode.memory_wait_s(), longest_s, softness)
    return _priced(placement_input, Option(workers, work, times, harm), times, harm, models)


def _overtaking_s(placement_input: PlacementInput, worker: WorkerState, done_s: float) -> float:
    """Time of prompts that are yet to come and will be computed before the request's prompt, in seconds."""
    if not worker.prompts.by_deadline:
        return 0.0
    return overtaking_s(placement_input.others.demand, done_s, placement_input.due_at - placement_input.now)


def stretched(step_s: float, num_output: float, stall_share: Shares, longest_step_s: float) -> float:
    """TPOT of an answer of `num_output` tokens on a worker with this stall share, whose steps with prompts take at most
    `longest_step_s`.
    """
    return min(step_s / (1.0 - share_over(stall_share, num_output * step_s)), longest_step_s)


def _wanted(seconds: float, use: float) -> float:
    """The part of a worker's time that other requests would use. `use`: the share of such workers that is busy."""
    return min(1.0, USE_FACTOR * use) * seconds


def _priced(
    placement_input: PlacementInput,
    option: Option,
    times: Times,
    harm: Harm,
    models: LatencyModels,
    moved: float = 0.0,
) -> Option:
    """Give the option its times, as clients see them, its risk and its cost. `moved`: the cost of leaving a worker."""
    option.waits_s = placement_input.age_s + times.memory_wait_s
    option.engine_ttft_s = times.ttft_s - times.memory_wait_s
    option.ttft_s = ttft_s = option.waits_s + models.bias.ttft(option.path).corrected(option.engine_ttft_s)
    late = _late(placement_input, ttft_s, times, models)
    slow = _slowness(placement_input, option, times, models)
    option.risk = risk = 1.0 - (1.0 - late) * (1.0 - slow)
    option.future_victims += late * option.work.prefill_s * placement_input.others.time_price
    computing = option.prefill or option.decode
    computed_share = 1.0 - placement_input.share_held(computing) if computing is not None else 1.0
    option.cost = (
        risk
        + moved
        + COMPUTING_WEIGHT * computed_share
        + VICTIM_WEIGHT * harm.victims
        + FUTURE_WEIGHT * option.future_victims
        + (TTFT_WEIGHT * ttft_s + ENGINE_TIME_WEIGHT * harm.wanted_s) / placement_input.slo_ttft_s
        + TPOT_WEIGHT * option.tpot_s / placement_input.slo_tpot_s
    )
    return option


def _late(placement_input: PlacementInput, ttft_s: float, times: Times, models: LatencyModels) -> float:
    """Probability that the TTFT objective is missed. The TTFT is uncertain by the errors of predictions lately, and by
    what the prompts that overtake may take more or less than expected. The time that they take is a compound Poisson
    sum, so its variance is its mean times the time of the prompt which is computed at a random moment. It is not
    negative: a request that is late without any of them is late.
    """
    objective_s, softness = placement_input.slo_ttft_s, models.bias.ttft_softness
    if not times.overtaking_s:
        return _lateness(ttft_s, objective_s, MARGIN, softness)
    deviation_s = sqrt(times.overtaking_s * placement_input.others.usual_prompt_s)
    wide = hypot(softness, OVERTAKING_SOFTNESS * deviation_s / objective_s)
    without = _lateness(ttft_s - times.overtaking_s, objective_s, MARGIN, softness)
    return max(without, _lateness(ttft_s, objective_s, MARGIN, wide))


def _slowness(placement_input: PlacementInput, option: Option, times: Times, models: LatencyModels) -> float:
    """Probability that the TPOT objective is missed, as the mean over a short, a median and a long answer. The TPOT of
    the median answer is written to the option, with and without the correction of the path's bias.
    """
    bias, gap_s, most_s = models.bias.tpot(option.path), times.gap_s, times.longest_step_s
    short, usual, long = placement_input.outputs
    option.engine_tpot_s = _tpot_s(times, usual)
    option.tpot_s = usual_s = _with_gap(bias.corrected(option.engine_tpot_s, most_s), gap_s, usual)
    short_s = _with_gap(bias.corrected(_tpot_s(times, short), most_s), gap_s, short)
    long_s = _with_gap(bias.corrected(_tpot_s(times, long), most_s), gap_s, long)
    objective_s, softness, most_softness = placement_input.slo_tpot_s, models.bias.tpot_softness, times.step_softness
    most_s += bias.overhead_s
    total = _slow(short_s, _with_gap(most_s, gap_s, short), objective_s, short, softness, most_softness)
    total += _slow(usual_s, _with_gap(most_s, gap_s, usual), objective_s, usual, softness, most_softness)
    total += _slow(long_s, _with_gap(most_s, gap_s, long), objective_s, long, softness, most_softness)
    return total / 3.0


def _tpot_s(times: Times, num_output: float) -> float:
    return stretched(times.step_s, num_output, times.stall_share, times.longest_step_s)


def _with_gap(tpot_s: float, gap_s: float, num_output: float) -> float:
    """The TPOT of an answer whose second token comes later by `gap_s`. An answer of one token has no TPOT."""
    if num_output <= 1.0:
        return tpot_s
    return tpot_s + (gap_s / (num_output - 1.0) if num_output > 2.0 else gap_s)


def _slow(
    tpot_s: float, most_s: float, objective_s: float, num_output: float, softness: float, most_softness: float
) -> float:
    """Probability that an answer of `num_output` tokens misses its TPOT objective. The prediction `tpot_s` is as
    uncertain as predictions lately were. The bound `most_s` is as uncertain as the lengths of the engine's steps.
    """
    if num_output <= 1.0:
        return 0.0
    predicted = _lateness(tpot_s, objective_s, TPOT_MARGIN, softness)
    return min(predicted, _lateness(most_s, objective_s, TPOT_MARGIN, most_softness))


def _overtaken(placement_input: PlacementInput, worker: WorkerState, seconds: float, models: LatencyModels) -> float:
    """Victims among the prompts that the request's prompt overtakes on the worker, each of which is done later by
    `seconds`.
    """
    overtaken = worker.prompts.after(placement_input.due_at)
    if not overtaken:
        return 0.0
    now, softness, total = placement_input.now, models.bias.ttft_softness, 0.0
    done_at = now + worker.prompts.seconds_before(placement_input.due_at, now)
    for charge in overtaken:
        done_at += worker.prompts.left_s(charge)
        later_s = overtaking_s(placement_input.others.demand, done_at - now, charge.due_at - now)
        was_s = done_at + later_s - charge.due_at + charge.slo_ttft_s
        rise = _later(was_s, was_s + seconds, charge.slo_ttft_s, MARGIN, softness)
        total += class_weight(charge.rank, placement_input.rank) * rise
    return total


def _inbound_victims(
    placement_input: PlacementInput, worker: WorkerState, from_s: float, to_s: float, slack_softness: float
) -> float:
    """Victims among the inbound requests of the worker. A request that joins while the prompt is computed is stalled by
    the rest of the prompt. `from_s` and `to_s`: the time from now in which the prompt is computed.
    """
    total, bound, step_s = 0.0, worker.model.kind.bound, worker.running.crowded_step_s
    for charge in worker.inbound.values():
        stall_s = to_s - max(from_s, charge.joins_at - placement_input.now)
        num_gaps = min(charge.lengths.quantile(USUAL), charge.most_tokens) - 1.0
        if stall_s <= 0.0 or num_gaps <= 0.0:
            continue
        budget_s = charge.slo_tpot_s * num_gaps
        slack_s = budget_s - num_gaps * step_s
        softness_s = slack_softness * budget_s
        most = inf
        if worker.has_short_steps:
            most_late_s = num_gaps * bound.longest_step_s(step_s, charge.slo_tpot_s) - budget_s
            most = most_late_s / (bound.softness * budget_s)
        was, will_be = min(-slack_s / softness_s, most), min((stall_s - slack_s) / softness_s, most)
        total += class_weight(charge.rank, placement_input.rank) * (logistic(will_be) - logistic(was))
    return total


def _later_decodes(
    placement_input: PlacementInput, worker: WorkerState, step_s: float, stalled_s: float, models: LatencyModels
) -> float:
    """Victims among requests that are yet to come and will decode on the worker.

    Such requests have the usual objective, and answers as long as this request's. For as long as one of them decodes, a
    larger share of the worker's time is lost to prompts, up to what the engine's longest step allows. A worker bears
    that up to a point, and beyond it all requests are late. Where other workers are free, later requests go there.
    """
    others, stall_share = placement_input.others, worker.stall_share.shares(placement_input.now)
    if not others.decode_use:
        return 0.0
    softness, bound, total = models.bias.tpot_softness, worker.model.kind.bound, 0.0
    for num_output in placement_input.outputs:
        horizon_s = min(max(num_output * step_s, SHORT_S), LONG_S)
        before = share_over(stall_share, horizon_s)
        after = min(MOST_SHARE, before + stalled_s / horizon_s)
        was_s, will_be_s = step_s / (1.0 - before), step_s / (1.0 - after)
        for later in others.later:
            most_s = bound.longest_step_s(step_s, later.slo_tpot_s) if worker.has_short_steps else inf
            was = _slow(was_s, most_s, later.slo_tpot_s, num_output, softness, bound.softness)
            will_be = _slow(will_be_s, most_s, later.slo_tpot_s, num_output, softness, bound.softness)
            total += horizon_s * later.weighed_per_s * (will_be - was)
    return others.decode_use * total / others.num_workers / 3.0


def _later_prompts(
    placement_input: PlacementInput,
    worker: WorkerState,
    seconds: float,
    done_s: float,
    models: LatencyModels,
) -> float:
    """Victims among requests that are yet to come and whose prompts the worker will compute.

    Such requests have the usual objective. Those that come while the queue lasts find it longer by this prompt, unless
    another worker has nothing to do. A request of the same class may wait or go elsewhere, and finds half of the queue
    on average; a request of a higher class finds the whole queue. Where prompts are computed by deadline, a request
    that is due before this one overtakes it and is not delayed.
    """
    others, softness, total = placement_input.others, models.bias.ttft_softness, 0.0
    left_s = placement_input.due_at - placement_input.now
    for later in others.later:
        lasts_s = done_s
        if worker.prompts.by_deadline:
            lasts_s = min(done_s, done_s - left_s + later.slo_ttft_s)
            if lasts_s <= 0.0:
                continue
        found_s, delay_s = (done_s, seconds) if later.is_higher else ((done_s + seconds) / 2, seconds / 2)
        total += lasts_s * later.weighed_per_s * _later(found_s, found_s + delay_s, later.slo_ttft_s, MARGIN, softness)
    return others.prompt_use * total / others.num_workers


def _lateness(seconds: float, objective_s: float, margin: float, softness: float) -> float:
    """Probability that an objective is missed by what is predicted to take `seconds`. Exactly 1 far above it.
    `softness`: of the threshold `margin`, as a share of the objective.
    """
    return logistic((seconds / objective_s - margin) / softness)


def _later(was_s: float, will_be_s: float, objective_s: float, margin: float, softness: float) -> float:
    """The rise of the probability that an objective is missed when `was_s` becomes `will_be_s`."""
    return _lateness(will_be_s, objective_s, margin, softness) - _lateness(was_s, objective_s, margin, softness)

"""The story of one request, in words and numbers, from the facts of a stimulus log. Pure.

The last line says where the time went. It names what the log shows: how long the request waited, how long its prompt
and its handoff took, and what had been predicted. It names neighbours as a possible cause only.
"""

from collections.abc import Callable, Iterator
from typing import Final

from cluster.messages.placement import Placement, Prediction, Rejection
from router.replay.facts import Facts, LeftOut, Question
from router.replay.observed_policy import Look, WorkerGlance

Clock = Callable[[float], str]
"""Shows a moment of the Scheduler's clock."""
MAX_SHOWN: Final = 12
"""Options, workers or pairs of a kind that are shown. More fills the screen; fewer hides the end of long lists."""
NOTABLE: Final = 0.1
"""Share of the predicted time by which the real one must differ to be named a wrong prediction. Higher excuses the
prediction; lower blames it for chance.
"""


def story(facts: Facts, clock: Clock) -> list[str]:
    lines = [_heading(facts)]
    if facts.is_inexact:
        lines.append("Records are missing here: what was considered is computed from an incomplete state.")
    for question in facts.questions:
        lines += _question(question, clock)
    lines += _end(facts, clock)
    return [*lines, where_the_time_went(facts)]


def where_the_time_went(facts: Facts) -> str:
    """One line."""
    return f"Where the time went: {_time(facts)}."


def _heading(facts: Facts) -> str:
    request = facts.questions[0].request
    name = f"Request {facts.request_id}"
    if request.http_request:
        name += f" (x-request-id {request.http_request})"
    most = "any number of" if request.max_output_tokens is None else f"at most {request.max_output_tokens}"
    tenant = f", tenant {request.tenant}" if request.tenant else ""
    return (
        f"{name}: class {request.slo_class}{tenant}, {request.num_prompt_tokens} prompt tokens, {most} output tokens, "
        f"Scheduler of epoch {facts.epoch}."
    )


def _question(question: Question, clock: Clock) -> Iterator[str]:
    request = question.request
    number = f"placement {request.attempt} is asked for"
    came = f"{request.age_s:.3f} s after it came{', after a pause' if request.is_paused else ''}"
    waiting = f"{question.num_waiting} requests wait"
    yield f"{clock(question.now)}  {number} by ingress {question.ingress}, {came}; {waiting}"
    looks = question.looks
    if looks:
        yield from _workers(looks[0])
        if len(looks) > 1:
            yield f"    the workers are looked at again while it waits, for the last time at {clock(looks[-1].now)}:"
        yield from _options(looks[-1])
    yield from _left_out(question.left_out)
    if question.answered_at is None:
        yield f"{clock(question.now)}  it waits, and the log has no answer"
        return
    yield f"{clock(question.answered_at)}  {_answer(question)}"
    if question.differs is not None:
        yield f"    the replay decides otherwise: {question.differs}"
    yield from _afterwards(question, clock)


def _workers(look: Look) -> Iterator[str]:
    ttft, tpot = _seconds(look.slo.ttft_s), _milliseconds(look.slo.tpot_s)
    yield f"    objectives: TTFT {ttft}, TPOT {tpot}"
    if look.is_blind:
        yield "    too many workers had missed reports: nothing is predicted, and the least LMetric decides"
    for worker in look.workers[:MAX_SHOWN]:
        yield f"    {_worker(worker)}"
    yield from _more(len(look.workers), "workers")


def _worker(worker: WorkerGlance) -> str:
    return (
        f"{worker.worker}: {worker.num_placed} requests, {worker.num_running} decode, {worker.num_prompts} prompts "
        f"before it ({_seconds(worker.prompts_s)}), {100 * worker.kv_share:.0f} % of KV memory reserved, "
        f"{worker.num_hit_tokens} tokens of the prompt cached"
    )


def _options(look: Look) -> Iterator[str]:
    for option in look.options[:MAX_SHOWN]:
        chosen = look.chosen == (option.path, option.prefill, option.decode)
        yield f"    {'*' if chosen else ' '} {_option(option)}"
    yield from _more(len(look.options), "options")
    for pairs, why in ((look.unproved, "link not proved"), (look.barred, "wrong handoffs")):
        shown = ", ".join(f"{prefill}->{decode}" for prefill, decode in pairs[:MAX_SHOWN])
        if pairs:
            rest = f" and {len(pairs) - MAX_SHOWN} more" if len(pairs) > MAX_SHOWN else ""
            yield f"    no handoff, {why}: {shown}{rest}"


def _option(option: Prediction) -> str:
    where = " and ".join(filter(None, (option.prefill, option.decode)))
    return (
        f"path {option.path} on {where}: TTFT {_seconds(option.ttft_s)}, TPOT {_milliseconds(option.tpot_s)}, "
        f"risk {option.risk:.3f}, victims {option.victims:.3f}, later victims {option.future_victims:.3f}, "
        f"cost {option.cost:.4f}"
    )


def _left_out(several: list[LeftOut]) -> Iterator[str]:
    for one in several[:MAX_SHOWN]:
        yield f"    left out: {one.worker}, {one.why}"
    yield from _more(len(several), "workers that were left out")


def _more(number: int, what: str) -> Iterator[str]:
    if number > MAX_SHOWN:
        yield f"    and {number - MAX_SHOWN} more {what}"


def _answer(question: Question) -> str:
    answer = question.answer
    assert question.answered_at is not None
    waited = question.answered_at - question.now
    after = f" after {_seconds(waited)} in the queue" if waited > 0 else ""
    match answer:
        case Placement():
            where = " and ".join(filter(None, (answer.prefill, answer.decode)))
            hit = f", {answer.num_hit_tokens} tokens expected in caches" if answer.num_hit_tokens else ""
            return f"placed{after}: path {answer.path} on {where}, {answer.why}{hit}"
        case Rejection():
            kind = "quarantine" if answer.is_quarantined else "load" if answer.is_overload else "no worker"
            return f"refused{after} ({kind}): {answer.why}; to come back after {_seconds(answer.retry_after_s)}"
    return f"failed{after}, a defect of the Scheduler: {answer}"


def _afterwards(question: Question, clock: Clock) -> Iterator[str]:
    happened = [(at, f"worker {worker} is lost: {why}") for at, worker, why in question.workers_lost]
    placed_at = question.answered_at or question.now
    if question.prefill_done_at is not None:
        happened.append(
            (question.prefill_done_at, f"prefill done, {_seconds(question.prefill_done_at - placed_at)} later")
        )
    if question.first_token_at is not None:
        since = question.prefill_done_at or placed_at
        happened.append(
            (
                question.first_token_at,
                f"the generating worker's first token, {_seconds(question.first_token_at - since)} later",
            )
        )
    if question.pause_asked_at is not None:
        happened.append((question.pause_asked_at, "its ingress is asked to pause it for a higher class"))
    for at, what in sorted(happened):
        yield f"{clock(at)}  {what}"
    if question.num_neighbours:
        yield (
            f"    before its first token, {question.num_neighbours} others were placed on its workers, with "
            f"{question.neighbour_tokens} prompt tokens to compute"
        )


def _end(facts: Facts, clock: Clock) -> Iterator[str]:
    closed = facts.closed
    if closed is None or facts.closed_at is None:
        yield "The log does not have its end."
        return
    how = "ended early: it failed, or its client left"
    if closed.num_output_tokens is not None:
        how = "finished"
    elif facts.last.placement is None:
        how = "closed"
    tokens = f" with {closed.num_output_tokens} output tokens" if closed.num_output_tokens is not None else ""
    lost = f", {closed.num_engines_lost} engines were lost with it" if closed.num_engines_lost else ""
    yield f"{clock(facts.closed_at)}  {how}{tokens}{lost}"
    placement = facts.first_served.placement
    if closed.ttft_s is not None:
        yield f"    TTFT {_compared(closed.ttft_s, _figures(placement, 'ttft_s'), _seconds)}"
    if closed.tpot_s is not None:
        yield f"    TPOT {_compared(closed.tpot_s, _figures(placement, 'tpot_s'), _milliseconds)}"


def _figures(placement: Placement | None, name: str) -> tuple[float | None, float | None]:
    """What was predicted, and the objective."""
    predicted, slo = (placement.predicted, placement.slo) if placement is not None else (None, None)
    return getattr(predicted, name, None), getattr(slo, name, None)


def _compared(was: float, figures: tuple[float | None, float | None], shown: Callable[[float], str]) -> str:
    expected, most = figures
    text = shown(was)
    if expected is not None:
        text += f", predicted {shown(expected)} ({round(100 * (was / expected - 1)):+d} %)" if expected > 0 else ""
    if most is not None:
        text += f", objective {shown(most)}: {'met' if was <= most else 'missed'}"
    return text


def _time(facts: Facts) -> str:
    last, closed = facts.last, facts.closed
    if last.placement is None:
        return _without_placement(facts)
    age_s = last.age_at_answer_s or 0.0
    ttft_s = closed.ttft_s if closed is not None else None
    if len(facts.questions) > 1:
        return _several(facts)
    if ttft_s is None:
        return f"{_seconds(age_s)} until it was placed; the log has no first token"
    queue_s = max(0.0, (last.answered_at or last.now) - last.now)
    parts = [f"{_seconds(ttft_s)} to the first token, of which {_seconds(queue_s)} in the Scheduler's queue"]
    parts.append(f"{_seconds(last.request.age_s)} before it was asked for")
    engines_s = max(0.0, ttft_s - age_s)
    if last.prefill_done_at is not None and last.answered_at is not None:
        prefill_s = last.prefill_done_at - last.answered_at
        parts.append(f"{_seconds(prefill_s)} for the prompt with those before it")
        parts.append(f"{_seconds(max(0.0, engines_s - prefill_s))} for handoff and first step")
    else:
        parts.append(f"{_seconds(engines_s)} on its worker")
    return f"{', '.join(parts)}; {_blame(facts, queue_s, engines_s, age_s)}"


def _blame(facts: Facts, queue_s: float, engines_s: float, age_s: float) -> str:
    """Which of it was most, and whether it was foreseen."""
    question, closed = facts.last, facts.closed
    assert question.placement is not None
    assert closed is not None
    predicted = question.placement.predicted
    most = "most of it was the queue" if queue_s > engines_s else "most of it was the engines"
    if predicted is None:
        return f"{most}, and nothing had been predicted"
    expected_s = max(0.0, predicted.ttft_s - age_s)
    tpot = _tpot_blame(closed.tpot_s, predicted)
    if abs(engines_s - expected_s) <= NOTABLE * max(expected_s, 1e-3):
        return f"{most}, and the engines took what was predicted ({_seconds(expected_s)}){tpot}"
    late = f"the engines were predicted to take {_seconds(expected_s)}, and took {_seconds(engines_s)}"
    if engines_s > expected_s and question.num_neighbours:
        late += f", perhaps because {question.num_neighbours} requests were placed beside it before its first token"
    return f"{most}; {late}{tpot}"


def _tpot_blame(was: float | None, predicted: Prediction) -> str:
    if was is None or predicted.tpot_s <= 0 or was <= predicted.tpot_s * (1 + NOTABLE):
        return ""
    return f"; later tokens took {was / predicted.tpot_s:.1f} times what was predicted, with neighbours that came later"


def _several(facts: Facts) -> str:
    """Of a request that was placed more than once."""
    first, last = facts.questions[0], facts.last
    ends = sum(1 for question in facts.questions[:-1] if question.request.attempt < last.request.attempt)
    waited_s = sum(max(0.0, (one.answered_at or one.now) - one.now) for one in facts.questions)
    age_s = (last.answered_at or last.now) - first.now + first.request.age_s
    paused = " for pauses" if last.request.num_pauses else ""
    total = f" of {_seconds(facts.closed_at - facts.arrived_at)} in all" if facts.closed_at is not None else ""
    return (
        f"{_seconds(age_s)}{total} before its last placement, of which {_seconds(waited_s)} in the Scheduler's queue; "
        f"{ends} earlier placements ended{paused} and were begun again"
    )


def _without_placement(facts: Facts) -> str:
    last = facts.last
    if last.answered_at is None:
        return "the log has no answer: it waited in the Scheduler's queue"
    waited_s = last.answered_at - last.now
    return f"{_seconds(waited_s)} in the Scheduler's queue, and it was never placed"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"

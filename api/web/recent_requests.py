"""What the kept route receipts of an ingress replica say of its latest requests: goodput, percentiles, and a line for
each of the last ones. Pure.
"""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Path, SloClass, WorkerId
from cluster.messages.timeline import Note
from cluster.slo import Result
from router.session.receipt import RouteReceipt

WINDOW_S = 300.0
"""Age up to which receipts count in the figures, in seconds. Longer hides what has just changed; shorter makes
percentiles of few requests.
"""
MOST_COUNTED = 500
"""Receipts that the figures are made of. More costs the event loop more for each document, some 0.2 ms for 500; fewer
makes the window shorter under load.
"""
MOST_LINES = 30
"""Requests that have a line. More makes each answer longer; fewer hides requests that an operator has just seen."""
MOST_STAGES = 32
"""Stages of one line. More makes answers longer; fewer hides steps of long prompts, which `GET /baton/receipts` has.
"""
PERCENTILES = (50, 90, 99)
MICROSECONDS = 6
"""Decimals of seconds. More make answers longer, and say nothing."""


class EndedRequest(msgspec.Struct, frozen=True):
    receipt: RouteReceipt
    closed_at: float
    """Unix time."""


class StageLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    start_s: float
    """Seconds since the arrival of the request."""
    end_s: float
    place: str = ""
    """`ingress`, `scheduler`, or the id of a worker."""
    notes: dict[str, Note] = {}
    is_measured: bool = True
    """False if the stage is what is left between measured ones."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens by the source of their KV (PromptTokenSources), with the names of the fields."""

    computed: int
    local: int
    pulled: int
    offloaded: int


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has ended."""

    request_id: str
    http_request: str
    closed_at: float
    """Unix time."""
    slo_class: SloClass
    path: Path | None
    prefill_worker: WorkerId | None
    worker: WorkerId | None
    outcome: str
    result: Result | None
    why: str
    """Why it ran there, or why it was refused."""
    error: str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_attempts: int
    num_pauses: int
    ttft_s: float | None
    tpot_s: float | None
    predicted_ttft_s: float | None
    predicted_tpot_s: float | None
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    prefill_sources: Sources | None
    """On the prefill worker of path P->D."""
    sources: Sources | None
    """On the worker that generated."""
    duration_s: float
    stages: list[StageLine]


class ClassLine(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one SLO class in the window."""

    slo_class: SloClass
    num: int
    """Requests that goodput counts: all but those that their clients aborted."""
    num_good: int
    results: dict[Result, int]
    ttft_s: list[float]
    """The PERCENTILES of the TTFT. Empty if no request had a token."""
    tpot_s: list[float]


class RecentRequests(msgspec.Struct, frozen=True, kw_only=True):
    num_kept: int
    """Receipts that are looked at: those that the replica keeps, MOST_COUNTED at most. With 0 the rest is empty."""
    num: int
    """Receipts in the window."""
    covers_s: float
    """Seconds from the oldest of them to now: shorter than the window where more requests end than are kept."""
    good_per_s: float
    """Goodput of this replica: requests per second that met their objectives."""
    classes: list[ClassLine]
    paths: dict[str, int]
    """Requests by path. Those that were never placed have the path `none`."""
    last: list[RequestLine]
    """The newest first."""


def recent_requests(ended: Sequence[EndedRequest], num_kept: int, now: float) -> RecentRequests:
    """`ended`: the newest first. `now`: Unix time."""
    lately = [one for one in ended if now - one.closed_at <= WINDOW_S]
    covers_s = min(WINDOW_S, now - lately[-1].closed_at) if len(lately) == num_kept and lately else WINDOW_S
    receipts = [one.receipt for one in lately]
    num_good = sum(receipt.result is Result.GOOD for receipt in receipts)
    by_class = ((slo_class, [r for r in receipts if r.slo_class is slo_class]) for slo_class in SloClass)
    return RecentRequests(
        num_kept=num_kept,
        num=len(receipts),
        covers_s=round(covers_s, 3),
        good_per_s=num_good / covers_s if covers_s > 0 else 0.0,
        classes=[_class_line(slo_class, of_class) for slo_class, of_class in by_class if of_class],
        paths=dict(Counter(str(receipt.path or "none") for receipt in receipts)),
        last=[request_line(one) for one in ended[:MOST_LINES]],
    )


def percentiles(values: Sequence[float]) -> list[float]:
    """The PERCENTILES of the values: of n values, the one whose rank is n times the share, rounded up."""
    ordered = sorted(values)
    return [ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)] for share in PERCENTILES] if ordered else []


def request_line(one: EndedRequest) -> RequestLine:
    receipt = one.receipt
    placement, rejection = receipt.placement, receipt.rejection
    predicted = placement.predicted if placement else None
    slo = placement.slo if placement else None
    last = receipt.attempts[-1] if receipt.attempts else None
    return RequestLine(
        request_id=receipt.request_id,
        http_request=receipt.http_request,
        closed_at=one.closed_at,
        slo_class=receipt.slo_class,
        path=receipt.path,
        prefill_worker=last.prefill_worker if last else (placement.prefill if placement else None),
        worker=placement.generating if placement else None,
        outcome=receipt.outcome,
        result=receipt.result,
        why=rejection.why if rejection else (placement.why if placement else ""),
        error=receipt.error,
        num_prompt_tokens=receipt.num_prompt_tokens,
        num_output_tokens=receipt.num_output_tokens,
        num_attempts=receipt.num_attempts,
        num_pauses=receipt.num_pauses,
        ttft_s=receipt.ttft_s,
        tpot_s=receipt.tpot_s,
        predicted_ttft_s=predicted.ttft_s if predicted else None,
        predicted_tpot_s=predicted.tpot_s if predicted else None,
        slo_ttft_s=slo.ttft_s if slo else None,
        slo_tpot_s=slo.tpot_s if slo else None,
        prefill_sources=_named(receipt.prefill_sources),
        sources=_named(receipt.sources),
        duration_s=receipt.duration_s,
        stages=_stages(receipt),
    )


def _class_line(slo_class: SloClass, receipts: Sequence[RouteReceipt]) -> ClassLine:
    results = Counter(receipt.result for receipt in receipts if receipt.result is not None)
    return ClassLine(
        slo_class=slo_class,
        num=results.total(),
        num_good=results[Result.GOOD],
        results=dict(results),
        ttft_s=percentiles([receipt.ttft_s for receipt in receipts if receipt.ttft_s is not None]),
        tpot_s=percentiles([receipt.tpot_s for receipt in receipts if receipt.tpot_s is not None]),
    )


def _named(sources: PromptTokenSources | None) -> Sources | None:
    return None if sources is None else Sources(**msgspec.structs.asdict(sources))


def _stages(receipt: RouteReceipt) -> list[StageLine]:
    return [
        StageLine(
            name=stage.name,
            start_s=round(stage.start_s, MICROSECONDS),
            end_s=round(stage.end_s, MICROSECONDS),
            place=stage.place,
            notes=stage.notes,
            is_measured=stage.is_measured,
        )
        for stage in receipt.stages[:MOST_STAGES]
    ]

"""A route receipt as a waterfall: its stages as rows, and what was expected beside what came. Pure.

`baton trace` prints it, and GET /baton/receipts/ID gives it. Times are milliseconds from the arrival of the request.
"""

import msgspec

from cluster.messages.generation import PromptTokenSources
from cluster.messages.timeline import Note, TimelineStage
from router.session.receipt import RouteReceipt
from router.session.timeline import unmeasured_s


class WaterfallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stage."""

    name: str
    place: str
    attempt: int
    """Number of the attempt, from 1 on. 0 before the first one."""
    start_ms: float
    end_ms: float
    is_before_first_token: bool
    """Whether the stage begins before the first token: those that do explain the TTFT."""
    is_measured: bool = True
    """False if the stage is what is left between measured ones."""
    notes: dict[str, Note]


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    http_request: str
    outcome: str
    error: str | None
    slo_class: str
    path: str | None
    why: str
    """Why placement chose the last attempt's workers, or why the request was refused."""
    prompt_tokens: int
    output_tokens: int
    sources: dict[str, dict[str, int]]
    """Tokens of the prompt by source, of the prefill worker and of the worker that generates."""
    duration_ms: float
    ttft_ms: float | None
    predicted_ttft_ms: float | None
    target_ttft_ms: float | None
    """The SLO."""
    unmeasured_ttft_ms: float | None = None
    """The part of the TTFT that nothing has measured. None without a token."""
    tpot_ms: float | None
    predicted_tpot_ms: float | None
    target_tpot_ms: float | None
    rows: list[WaterfallRow]


def waterfall_of(receipt: RouteReceipt) -> Waterfall:
    placement, rejection = receipt.placement, receipt.rejection
    predicted, slo = (placement.predicted, placement.slo) if placement else (None, None)
    of_attempts = [(attempt.number, stage) for attempt in receipt.attempts for stage in attempt.timeline]
    staged = sorted([*((0, stage) for stage in receipt.timeline), *of_attempts], key=lambda of: of[1].start_s)
    return Waterfall(
        request_id=receipt.request_id,
        http_request=receipt.http_request,
        outcome=receipt.outcome,
        error=receipt.error,
        slo_class=receipt.slo_class,
        path=receipt.path,
        why=rejection.why if rejection else placement.why if placement else "",
        prompt_tokens=receipt.num_prompt_tokens,
        output_tokens=receipt.num_output_tokens,
        sources=_sources(prefill=receipt.prefill_sources, generating=receipt.sources),
        duration_ms=_ms(receipt.duration_s),
        ttft_ms=_optional_ms(receipt.ttft_s),
        predicted_ttft_ms=_optional_ms(predicted.ttft_s if predicted else None),
        target_ttft_ms=_optional_ms(slo.ttft_s if slo else None),
        unmeasured_ttft_ms=_unmeasured_ms(receipt),
        tpot_ms=_optional_ms(receipt.tpot_s),
        predicted_tpot_ms=_optional_ms(predicted.tpot_s if predicted else None),
        target_tpot_ms=_optional_ms(slo.tpot_s if slo else None),
        rows=[_row(number, stage, receipt.ttft_s) for number, stage in staged],
    )


def _row(attempt: int, stage: TimelineStage, ttft_s: float | None) -> WaterfallRow:
    return WaterfallRow(
        name=stage.name,
        place=stage.place,
        attempt=attempt,
        start_ms=_ms(stage.start_s),
        end_ms=_ms(stage.end_s),
        is_before_first_token=ttft_s is None or stage.start_s < ttft_s,
        is_measured=stage.is_measured,
        notes=stage.notes,
    )


def _unmeasured_ms(receipt: RouteReceipt) -> float | None:
    return None if receipt.ttft_s is None else _ms(sum(unmeasured_s(receipt.stages, receipt.ttft_s).values()))


def _sources(**given: PromptTokenSources | None) -> dict[str, dict[str, int]]:
    return {role: msgspec.structs.asdict(sources) for role, sources in given.items() if sources is not None}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _optional_ms(seconds: float | None) -> float | None:
    return None if seconds is None else _ms(seconds)

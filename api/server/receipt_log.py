"""The route receipts of one ingress replica: all are counted in metrics, and the last ones are kept."""

from typing import Protocol

import msgspec

from api.server.kept_receipts import KeptReceipts
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Outcome, SloClass
from cluster.messages.scheduler_events import HandoffChecked
from cluster.metrics.handoffs import CONVICTIONS, VERIFICATIONS
from cluster.metrics.requests import (
    ATTEMPTS,
    GOODPUT,
    ITL,
    OUTPUT_TOKENS,
    PAUSES,
    PREDICTION_RATIO,
    REJECTIONS,
    REQUEST,
    REQUEST_PROMPT_TOKENS,
    REQUEST_QUEUE,
    REQUESTS,
    TPOT,
    TTFT,
    TTFT_UNMEASURED,
)
from kvtransfer import verify
from router.session.receipt import RouteReceipt
from router.session.timeline import unmeasured_s


class TraceSink(Protocol):
    def closed(self, receipt: RouteReceipt) -> None:
        """A request has ended. Must not wait."""
        ...


class ReceiptLog:
    """The sessions' observer (router/session/receipt.py)."""

    def __init__(self, num_kept: int, traces: TraceSink | None = None) -> None:
        """`traces`: gets all receipts, too. None if no traces are exported."""
        self._traces = traces
        self.kept = KeptReceipts(num_kept)

    @property
    def is_traced(self) -> bool:
        """Whether traces are exported."""
        return self._traces is not None

    def closed(self, receipt: RouteReceipt) -> None:
        self.kept.add(receipt)
        if self._traces is not None:
            self._traces.closed(receipt)
        path, slo_class = receipt.path or "none", receipt.slo_class
        REQUESTS.labels(path, slo_class, receipt.outcome).inc()
        if (reason := _reason(receipt)) is not None:
            REJECTIONS.labels(slo_class, reason).inc()
        OUTPUT_TOKENS.inc(receipt.num_output_tokens)
        ATTEMPTS.inc(receipt.num_attempts)
        PAUSES.labels(slo_class).inc(receipt.num_pauses)
        if (result := receipt.result) is not None:
            GOODPUT.labels(slo_class, path, result).inc()
        _observe_times(receipt, path, slo_class)
        _count_sources("prefill", receipt.prefill_sources)
        _count_sources("decode", receipt.sources)
        _compare(receipt, path)

    def verified(self, checked: HandoffChecked) -> None:
        VERIFICATIONS.labels(checked.verdict).inc()
        if checked.verdict.is_strike and checked.num_strikes >= verify.MAX_STRIKES:
            CONVICTIONS.labels(checked.verdict).inc()


def _reason(receipt: RouteReceipt) -> str | None:
    """Why the request was refused. None if it was not."""
    rejection = receipt.rejection
    if rejection is not None and rejection.is_quarantined:
        return "quarantined"
    if receipt.outcome is not Outcome.REJECTED:
        return None
    if rejection is None:
        return "no_token"
    return "overload" if rejection.is_overload else "no_worker"


def _observe_times(receipt: RouteReceipt, path: str, slo_class: SloClass) -> None:
    REQUEST_QUEUE.labels(slo_class).observe(receipt.queued_s)
    if receipt.outcome is Outcome.FINISHED:
        REQUEST.labels(path, slo_class).observe(receipt.duration_s)
    if (ttft_s := receipt.least_ttft_s) is not None:
        TTFT.labels(path, slo_class).observe(ttft_s)
    if receipt.ttft_s is not None:
        for part, seconds in unmeasured_s(receipt.stages, receipt.ttft_s).items():
            TTFT_UNMEASURED.labels(path, part).observe(seconds)
    if receipt.tpot_s is not None:
        TPOT.labels(path, slo_class).observe(receipt.tpot_s)
    if receipt.gaps is not None:
        ITL.add((path, slo_class), receipt.gaps.counts, receipt.gaps.total_s)


def _count_sources(role: str, sources: PromptTokenSources | None) -> None:
    if sources is not None:
        for source, count in msgspec.structs.asdict(sources).items():
            REQUEST_PROMPT_TOKENS.labels(role, source).inc(count)


def _compare(receipt: RouteReceipt, path: str) -> None:
    """Record the ratios of measured to predicted times, unless the request had more than one placement."""
    predicted = receipt.placement.predicted if receipt.placement else None
    if predicted is None or receipt.num_attempts != 1:
        return
    if receipt.ttft_s is not None and predicted.ttft_s > 0:
        PREDICTION_RATIO.labels(path, "ttft").observe(receipt.ttft_s / predicted.ttft_s)
    if receipt.tpot_s is not None and predicted.tpot_s > 0:
        PREDICTION_RATIO.labels(path, "tpot").observe(receipt.tpot_s / predicted.tpot_s)

"""The route receipts of one ingress replica: all are counted in metrics, and the last ones are kept."""

from typing import Protocol

import msgspec

from api.server.kept_receipts import KeptReceipts
from cluster.messages.generation import PromptTokenSources
from cluster.messages.scheduler_events import HandoffChecked
from cluster.metrics.handoffs import CONVICTIONS, VERIFICATIONS
from cluster.metrics.requests import (
    ATTEMPTS,
    GOODPUT,
    OUTPUT_TOKENS,
    PAUSES,
    PREDICTION_RATIO,
    REQUEST_PROMPT_TOKENS,
    REQUESTS,
    TPOT,
    TTFT,
)
from kvtransfer import verify
from router.session.receipt import RouteReceipt


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
        path = receipt.path or "none"
        REQUESTS.labels(path, receipt.outcome).inc()
        OUTPUT_TOKENS.inc(receipt.num_output_tokens)
        ATTEMPTS.inc(receipt.num_attempts)
        PAUSES.labels(receipt.slo_class).inc(receipt.num_pauses)
        if receipt.result is not None:
            GOODPUT.labels(receipt.slo_class, path, receipt.result).inc()
        if receipt.ttft_s is not None:
            TTFT.labels(path).observe(receipt.ttft_s)
        if receipt.tpot_s is not None:
            TPOT.labels(path).observe(receipt.tpot_s)
        _count_sources("prefill", receipt.prefill_sources)
        _count_sources("decode", receipt.sources)
        _compare(receipt, path)

    def verified(self, checked: HandoffChecked) -> None:
        VERIFICATIONS.labels(checked.verdict).inc()
        if checked.verdict.is_strike and checked.num_strikes >= verify.MAX_STRIKES:
            CONVICTIONS.labels(checked.verdict).inc()


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

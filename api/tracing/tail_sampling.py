"""Which requests are exported as traces, decided when they have ended. Pure."""

from cluster.config.observability.tracing import KeptTraces
from cluster.messages.ids import Outcome
from cluster.slo import Result
from router.session.receipt import RouteReceipt

MOST_ASKED_PER_S, MOST_ASKED_AT_ONCE = 10.0, 50.0
"""Traces that are kept because clients ask for them (the sampled flag of `traceparent`): so many each second, and so
many in a burst. More lets clients fill the collector; fewer breaks traces of clients that sample much.
"""
MISSED = frozenset({Result.TTFT_MISSED, Result.TPOT_MISSED, Result.BOTH_MISSED})


class TailSampler:
    def __init__(self, keep: KeptTraces) -> None:
        self._keep = keep
        self._num_left = MOST_ASKED_AT_ONCE
        self._counted_at = float("-inf")

    def why_kept(self, receipt: RouteReceipt, now: float) -> str | None:
        """In one word. None if the request is not exported. `now`: in seconds."""
        keep = self._keep
        if keep.failed and receipt.outcome is Outcome.FAILED:
            return "failed"
        if keep.refused and receipt.outcome is Outcome.REJECTED:
            return "refused"
        if keep.slow and receipt.result in MISSED:
            return "slow"
        if keep.verified and any(s.name == "verify" for attempt in receipt.attempts for s in attempt.timeline):
            return "verified"
        trace = receipt.trace
        if trace is None:
            return None
        if trace.is_sampled and self._may_ask(now):
            return "asked"
        return "share" if int(trace.trace_id[16:], 16) < keep.share * 2**64 else None

    def _may_ask(self, now: float) -> bool:
        new = (now - self._counted_at) * MOST_ASKED_PER_S
        self._num_left, self._counted_at = min(MOST_ASKED_AT_ONCE, self._num_left + max(0.0, new)), now
        if self._num_left < 1.0:
            return False
        self._num_left -= 1.0
        return True

"""Which requests are exported as traces, decided when they have ended. Pure.

A client chooses the trace id of its requests, their objectives, and often whether they fail. So the ids that make up
the share are chosen by a secret, and every reason that a client can cause has a rate.
"""

from collections.abc import Mapping
from hashlib import blake2b

from cluster.config.observability.tracing import KeptTraces
from cluster.messages.ids import Outcome
from cluster.slo import SloConfig
from router.session.receipt import RouteReceipt

MOST_PER_S: Mapping[str, float] = {"asked": 10.0, "slow": 20.0, "failed": 20.0, "refused": 20.0}
"""Traces a second that are kept for each reason that clients can cause. `asked`: the sampled flag of `traceparent`.
More lets clients fill the collector; fewer breaks traces of clients that sample much, and shows fewer of many failures.
"""
BURST_S = 5.0
"""Time for which a rate may be used at once, in seconds. Longer lets clients fill the queue of the export; shorter
leaves out more of a short burst.
"""


class TraceRate:
    """A token bucket."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._num_left = per_s * BURST_S
        self._counted_at = float("-inf")

    def take(self, now: float) -> bool:
        """Whether one more is allowed. `now`: in seconds."""
        new = max(0.0, now - self._counted_at) * self._per_s
        self._num_left, self._counted_at = min(self._per_s * BURST_S, self._num_left + new), now
        if self._num_left < 1.0:
            return False
        self._num_left -= 1.0
        return True


class TailSampler:
    def __init__(self, keep: KeptTraces, slo: SloConfig, secret: bytes) -> None:
        """`secret`: at most 64 bytes, of this process."""
        self._keep = keep
        self._slo = slo
        self._secret = secret
        self._rates = {why: TraceRate(per_s) for why, per_s in MOST_PER_S.items()}

    def why_kept(self, receipt: RouteReceipt, now: float) -> str | None:
        """In one word. None if the request is not exported. `now`: in seconds."""
        keep = self._keep
        why = self._fate(receipt)
        if why is not None and self._rates[why].take(now):
            return why
        if keep.verified and any(s.name == "verify" for attempt in receipt.attempts for s in attempt.timeline):
            return "verified"
        trace = receipt.trace
        if trace is None:
            return None
        if trace.is_sampled and self._rates["asked"].take(now):
            return "asked"
        return "share" if self._is_in_share(trace.trace_id) else None

    def _fate(self, receipt: RouteReceipt) -> str | None:
        """The reason to keep the request by how it went."""
        keep = self._keep
        if keep.failed and receipt.outcome is Outcome.FAILED:
            return "failed"
        if keep.refused and receipt.outcome is Outcome.REJECTED:
            return "refused"
        return "slow" if keep.slow and self._is_slow(receipt) else None

    def _is_slow(self, receipt: RouteReceipt) -> bool:
        """Whether the request has missed its objectives, and those of its class for an empty prompt: a request can set
        tighter ones than its class.
        """
        if receipt.outcome is not Outcome.FINISHED or receipt.placement is None:
            return False
        own, of_class = receipt.placement.slo, self._slo.of(receipt.slo_class)
        if own is None:
            return False
        is_late = receipt.ttft_s is not None and receipt.ttft_s > max(own.ttft_s, of_class.ttft_s)
        return is_late or (receipt.tpot_s is not None and receipt.tpot_s > max(own.tpot_s, of_class.tpot_s))

    def _is_in_share(self, trace_id: str) -> bool:
        hashed = blake2b(trace_id.encode(), key=self._secret, digest_size=8).digest()
        return int.from_bytes(hashed, "big") < self._keep.share * 2**64

"""TTFT and TPOT of one request, observed where its tokens are released."""

from cluster import metrics
from cluster.types import TokenDelta


class RequestLatency:
    """Times are monotonic seconds. TPOT follows the first sequence when there are several."""

    def __init__(self, arrived_at: float) -> None:
        self._arrived_at = arrived_at
        self._first_at: float | None = None
        self._last_at = arrived_at
        self._num_tokens = 0

    def released(self, delta: TokenDelta, path: str, now: float) -> None:
        if delta.sequence or not delta.token_ids:
            return
        if self._first_at is None:
            self._first_at = now
            metrics.TTFT.labels(path).observe(now - self._arrived_at)
        self._last_at = now
        self._num_tokens += len(delta.token_ids)

    def ended(self, path: str) -> None:
        if self._first_at is not None and self._num_tokens > 1:
            metrics.TPOT.labels(path).observe((self._last_at - self._first_at) / (self._num_tokens - 1))

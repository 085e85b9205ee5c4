"""TTFT and TPOT of one request, where its tokens are released. Times are seconds of the event loop's clock.

TTFT counts from the request's arrival at the ingress. TPOT is the mean gap after the first token, `(E2E - TTFT) /
(output tokens - 1)`; it follows the first sequence where there are several.
"""

from cluster.messages.generation import TokenDelta


class Timing:
    __slots__ = ("_arrived_at", "_first_at", "_last_at", "_num_tokens")

    def __init__(self, arrived_at: float) -> None:
        self._arrived_at = arrived_at
        self._first_at: float | None = None
        self._last_at = arrived_at
        self._num_tokens = 0

    def released(self, delta: TokenDelta, now: float) -> None:
        if delta.sequence or not delta.token_ids:
            return
        if self._first_at is None:
            self._first_at = now
        self._last_at = now
        self._num_tokens += len(delta.token_ids)

    def age_s(self, now: float) -> float:
        return now - self._arrived_at

    @property
    def ttft_s(self) -> float | None:
        """None before the first token."""
        return None if self._first_at is None else self._first_at - self._arrived_at

    @property
    def tpot_s(self) -> float | None:
        """None before the second token."""
        if self._first_at is None or self._num_tokens < 2:
            return None
        return (self._last_at - self._first_at) / (self._num_tokens - 1)

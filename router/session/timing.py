"""When the tokens of one request were released: TTFT and TPOT. Times are seconds of the event loop's clock.

TTFT counts from the arrival of the request at the ingress. TPOT is the mean time between the tokens after the first
one, `(E2E - TTFT) / (output tokens - 1)`. Both are those of the first sequence.
"""

from cluster.messages.generation import TokenDelta


class Timing:
    __slots__ = ("_arrived_at", "_first_at", "_last_at", "_num_tokens", "num_output_tokens")

    def __init__(self, arrived_at: float) -> None:
        self._arrived_at = arrived_at
        self._first_at: float | None = None
        self._last_at = arrived_at
        self._num_tokens = 0
        """Released tokens of the first sequence."""
        self.num_output_tokens = 0
        """Released tokens of all sequences."""

    def released(self, delta: TokenDelta, now: float) -> None:
        num_tokens = len(delta.token_ids)
        self.num_output_tokens += num_tokens
        if delta.sequence or not num_tokens:
            return
        if self._first_at is None:
            self._first_at = now
        self._last_at = now
        self._num_tokens += num_tokens

    def age_s(self, now: float) -> float:
        """Seconds since the request reached the ingress."""
        return now - self._arrived_at

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, in seconds. None before the first token."""
        return None if self._first_at is None else self._first_at - self._arrived_at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token, in seconds. None before the second token."""
        if self._first_at is None or self._num_tokens < 2:
            return None
        return (self._last_at - self._first_at) / (self._num_tokens - 1)

"""When the tokens of one request were released: TTFT, TPOT and ITL. Times are seconds of the event loop's clock.

TTFT counts from the arrival of the request at the ingress. TPOT is the mean time between the tokens after the first
one, `(E2E - TTFT) / (output tokens - 1)`. ITL is the time between two tokens. Where tokens come n at a time, g seconds
after the one before, these are n gaps of g/n seconds; the first delta of a request has no gaps, however many tokens it
has. Only the numbers of gaps by bucket are kept, so a token costs no more than a search among the bounds. All of this
is of the first sequence.
"""

from bisect import bisect_left

from cluster.messages.generation import TokenDelta
from cluster.metrics.buckets import GAP_BUCKETS_S
from router.session.receipt import TokenGaps


class Timing:
    __slots__ = ("_arrived_at", "_first_at", "_gaps", "_last_at", "_num_tokens", "num_output_tokens")

    def __init__(self, arrived_at: float) -> None:
        self._arrived_at = arrived_at
        self._first_at: float | None = None
        self._last_at = arrived_at
        self._num_tokens = 0
        """Released tokens of the first sequence."""
        self._gaps = [0] * (len(GAP_BUCKETS_S) + 1)
        """Gaps between these tokens, in number, by bucket."""
        self.num_output_tokens = 0
        """Released tokens of all sequences."""

    def released(self, delta: TokenDelta, now: float) -> None:
        num_tokens = len(delta.token_ids)
        self.num_output_tokens += num_tokens
        if delta.sequence or not num_tokens:
            return
        if self._first_at is None:
            self._first_at = now
        else:
            self._gaps[bisect_left(GAP_BUCKETS_S, (now - self._last_at) / num_tokens)] += num_tokens
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

    @property
    def gaps(self) -> TokenGaps | None:
        """None before the second delta."""
        if self._first_at is None or not any(self._gaps):
            return None
        return TokenGaps(tuple(self._gaps), self._last_at - self._first_at)

"""KvPrice: what a token of KV memory costs while memory is scarce, in requests that find no room because of it. Pure.

A request holds its KV blocks until its answer ends. Where the memory of all workers is nearly full, a long prompt takes
the room of several usual requests, which would be refused. So the price counts the request's KV tokens in usual
requests. Where memory is free, the price is nothing.
"""

from collections.abc import Sequence
from math import inf
from typing import Final, final

from router.load.decode_slack import logistic
from router.load.worker_state import WorkerState
from router.prediction.decaying import moving_median

SCARCE_SHARE: Final = 0.85
"""Share of all KV memory that is reserved when a further usual request displaces half a request. Higher admits long
prompts until short ones find no room; lower refuses long prompts while there is room for them.
"""
SOFTNESS: Final = 0.05
"""Width of the rise of the price around SCARCE_SHARE, as a share of the memory. Higher makes free memory cost
something; lower makes memory cost nothing until it is gone.
"""
USUAL_SHARE: Final = 0.02
"""Share of itself by which one request moves the usual number of KV tokens. Higher follows chance; lower learns late
that traffic has changed.
"""


@final
class KvPrice:
    __slots__ = ("_usual_tokens",)

    def __init__(self) -> None:
        self._usual_tokens: float | None = None

    def note(self, kv_tokens: int) -> None:
        """A request that needs so many KV tokens was placed or refused."""
        self._usual_tokens = moving_median(self._usual_tokens, max(1.0, float(kv_tokens)), USUAL_SHARE)

    def per_token(self, workers: Sequence[WorkerState]) -> float:
        """Requests that one KV token displaces."""
        reserved = sum([worker.kv_reserved for worker in workers])
        capacity = sum([worker.kv_capacity for worker in workers])
        if self._usual_tokens is None or not reserved or capacity == inf:
            return 0.0
        return logistic((reserved / capacity - SCARCE_SHARE) / SOFTNESS) / self._usual_tokens

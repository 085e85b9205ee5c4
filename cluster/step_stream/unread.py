"""Tokens that a worker sent to this ingress and that no session took, because it had ended by then. The worker's engine
has counted them, so the ledger of usage differs from the engine's counter by them.
"""

from cluster.messages.ids import WorkerId
from cluster.metrics.requests import UNREAD_TOKENS

MAX_WORKERS = 4096
"""Workers whose tokens are counted, the latest ones. More takes memory; fewer forgets workers that still run."""


class UnreadTokens:
    def __init__(self) -> None:
        self._numbers: dict[WorkerId, int] = {}

    def add(self, worker: WorkerId, number: int) -> None:
        if worker not in self._numbers and len(self._numbers) >= MAX_WORKERS:
            first = next(iter(self._numbers))
            del self._numbers[first]
            UNREAD_TOKENS.remove(first)
        self._numbers[worker] = self._numbers.get(worker, 0) + number
        UNREAD_TOKENS.labels(worker).inc(number)

    def of(self, worker: WorkerId) -> int:
        return self._numbers.get(worker, 0)

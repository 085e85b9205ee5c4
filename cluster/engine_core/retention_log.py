"""What became of kept conversations, on its way from the engine's core to the worker that shows it. Pure.

An engine's core has no metrics that are scraped. So the counts of the scheduler (cluster/engine_scheduler/) travel with
the statistics of the connector (kvtransfer/connector.py), and the worker shows them (cluster/engine/step_stats.py).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cluster.messages.retention import RetentionCounts

INTERVAL_S: Final = 1.0
"""Seconds between two messages. Longer makes the metrics older; shorter costs the engine's front time."""
RETENTION_KEY: Final = "retention"
"""Key of the counts in the statistics of an engine's connector."""


class RetentionLog:
    """Where the connector finds the counts of its scheduler."""

    __slots__ = ("_counts", "_taken", "_taken_at")

    def __init__(self) -> None:
        self._counts: Callable[[], RetentionCounts] | None = None
        self._taken = RetentionCounts()
        self._taken_at = 0.0

    def tell(self, counts: Callable[[], RetentionCounts]) -> None:
        """The scheduler keeps blocks, and this counts them."""
        self._counts = counts

    def take(self, now: float) -> list[tuple[int, ...]]:
        """The counts, as a list of one. Empty if nothing has changed, or if the last ones were taken less than
        INTERVAL_S ago.
        """
        if self._counts is None or now - self._taken_at < INTERVAL_S:
            return []
        self._taken_at = now
        counts = self._counts()
        if counts == self._taken:
            return []
        self._taken = counts
        return [msgspec.structs.astuple(counts)]


def counts_in(stats: Mapping[str, Any]) -> RetentionCounts | None:
    """The counts in the connector's statistics of one step, which have gone through a serializer."""
    told = stats.get(RETENTION_KEY)
    return RetentionCounts(*told[-1]) if told else None

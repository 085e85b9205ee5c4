"""Whether one worker has the requests that are charged to it, by the counts in its reports."""

from typing import Final, final

NUM_SHORT: Final = 4
"""Reports in a row that count fewer requests than the worker must have, before the worker is asked which requests it
has. Lower asks workers whose requests are between two attempts; higher finds a lost charge later, by a quarter of a
second for each report at four reports a second.
"""


@final
class RequestAudit:
    __slots__ = ("_num_short", "asked_at")

    def __init__(self) -> None:
        self._num_short = 0
        """Reports in a row that counted fewer requests than the worker must have."""
        self.asked_at: float | None = None
        """When the worker was first asked which requests it has. None if no question is open."""

    def count_is_right(self) -> None:
        self._num_short = 0

    def count_is_short(self, now: float) -> None:
        """A report counts fewer requests than the worker must have."""
        self._num_short += 1
        if self._num_short >= NUM_SHORT and self.asked_at is None:
            self.asked_at = now

    def answered(self) -> None:
        """A report has named the requests of the worker."""
        self.asked_at, self._num_short = None, 0

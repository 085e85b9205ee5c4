"""When a service that does not answer is left alone, and how many may wait for it. Pure.

The breaker is closed while the service answers. It opens when too many of the last calls have failed: then no call is
made. After a wait it is half open, and one call probes the service. An answer closes it; a failure doubles the wait.
Calls that began before it opened count no more.
"""

from collections import Counter, deque
from enum import StrEnum

WINDOW = 10
"""Last calls that are looked at. More opens later when an endpoint that has worked fails; fewer opens for bad luck."""
MOST_FAILURES = 5
"""Failures among them that open the breaker. More has more texts wait for a deadline in vain; fewer opens for calls
that fail for themselves.
"""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Time until the probe, in seconds: after the breaker has opened, and at most. Longer leaves texts unscanned after the
service is back; shorter has more texts wait for a service that is away.
"""


class CallEnd(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The call was given up before it could say anything of the service."""


class CircuitBreaker:
    """Of one service."""

    __slots__ = ("_epoch", "_failures", "_opened_at", "_probe", "_wait_s")

    def __init__(self) -> None:
        self._failures: deque[bool] = deque(maxlen=WINDOW)
        """Of the last calls, whether each has failed."""
        self._epoch = 0
        """How often it has opened or probed. A call of an earlier epoch does not count."""
        self._opened_at: float | None = None
        """None while it is closed."""
        self._wait_s = FIRST_WAIT_S
        self._probe: int | None = None
        """The epoch of the probe that is under way."""

    @property
    def is_closed(self) -> bool:
        return self._opened_at is None

    def start(self, now: float) -> int | None:
        """What the call that starts gives back to `end`; None if no call may start."""
        if self._opened_at is None:
            return self._epoch
        if self._probe is not None or now < self._opened_at + self._wait_s:
            return None
        self._epoch += 1
        self._probe = self._epoch
        return self._epoch

    def end(self, permit: int, end: CallEnd, now: float) -> None:
        """Each call that has started ends once."""
        if permit != self._epoch:
            return
        if permit == self._probe:
            self._end_probe(end, now)
        elif self._opened_at is None and end is not CallEnd.UNKNOWN:
            self._failures.append(end is CallEnd.FAILED)
            if sum(self._failures) >= MOST_FAILURES:
                self._open(now, FIRST_WAIT_S)

    def _end_probe(self, end: CallEnd, now: float) -> None:
        self._probe = None
        match end:
            case CallEnd.ANSWERED:
                self._opened_at = None
            case CallEnd.FAILED:
                self._open(now, min(2 * self._wait_s, LONGEST_WAIT_S))
            case CallEnd.UNKNOWN:
                pass  # the next call is the probe

    def _open(self, now: float, wait_s: float) -> None:
        self._epoch += 1
        self._opened_at, self._wait_s = now, wait_s
        self._failures.clear()


class Bulkhead:
    """How many are inside, so that those who wait for a slow service do not fill the process."""

    __slots__ = ("_inside", "_most", "_most_of_one", "num_inside")

    def __init__(self, most: int, most_of_one: int) -> None:
        """`most_of_one`: of one tenant, so that the others find room."""
        self._most = most
        self._most_of_one = most_of_one
        self._inside: Counter[str] = Counter()
        self.num_inside = 0

    def enter(self, tenant: str) -> bool:
        """Whether there is room. Whoever enters leaves once."""
        if self.num_inside >= self._most or self._inside[tenant] >= self._most_of_one:
            return False
        self.num_inside += 1
        self._inside[tenant] += 1
        return True

    def leave(self, tenant: str) -> None:
        self.num_inside -= 1
        self._inside[tenant] -= 1
        if not self._inside[tenant]:
            del self._inside[tenant]

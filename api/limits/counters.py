"""The counters of limits per minute and of budgets, as reserve.lua has them, too. Pure.

All is in whole numbers, so that Python and Lua compute the same: times in milliseconds since 1970, and what a limit per
minute has given out in units of 1/60000 token or request, of which it gets back as many per millisecond as the limit.
"""

from typing import NamedTuple

from api.limits.limits import LimitKind

MINUTE_MS = 60_000
"""Time in which a limit per minute gives as much as its capacity, in milliseconds. It is what "per minute" means."""
DAY_MS = 24 * 60 * MINUTE_MS
"""Length of a day of UTC, in milliseconds."""
MOST_MARKS = 8
"""Low points that a limit per minute remembers. More costs time in Redis; fewer gives back less of what was reserved
when very many requests are open.
"""
MOST_COUNTED = 2**52
"""Highest count of a bucket, at which it stays. More is no exact number in Lua; less forgets what was overdrawn."""


class Room(NamedTuple):
    """What a bucket has left."""

    remaining: int
    reset_ms: int
    """Time until the bucket is full again, or until the end of the day or month."""


class RateBucket:
    """A token bucket. `debt` is what it has given out and not yet got back.

    What a settled request gives back must not be more than what the bucket would have had without it: a bucket that was
    full in the meantime has lost what it got back. So the bucket remembers its low points: `marks` are pairs of a time,
    and the least debt since then. A request gives back no more than the least debt since it was reserved.
    """

    __slots__ = ("at_ms", "capacity", "debt", "marks")

    def __init__(self, capacity: int, now_ms: int) -> None:
        self.capacity = capacity
        self.debt = 0
        self.at_ms = now_ms
        self.marks: list[tuple[int, int]] = []
        """Both parts rise."""

    def advance(self, now_ms: int) -> None:
        self.debt = max(0, self.debt - self.capacity * max(0, now_ms - self.at_ms))
        self.at_ms = max(self.at_ms, now_ms)

    def room(self) -> Room:
        return Room(
            max(0, self.capacity * MINUTE_MS - self.debt) // MINUTE_MS, (self.debt + self.capacity - 1) // self.capacity
        )

    def wait_ms(self, amount: int) -> int:
        """Time until `amount` fits; 0 if it does."""
        missing = self.debt + (amount - self.capacity) * MINUTE_MS
        return 0 if missing <= 0 else (missing + self.capacity - 1) // self.capacity

    def charge(self, units: int) -> None:
        if units > 0:
            self._set_marks([(since, min(low, self.debt)) for since, low in self.marks])
            self.debt = min(MOST_COUNTED, self.debt + units)
            if self.marks and self.marks[-1][0] == self.at_ms:
                self.marks.pop()  # no time has passed since, in which the bucket could have lost anything
            self.marks.append((self.at_ms, self.debt))
            self._forget_marks()

    def give_back(self, units: int, taken_at_ms: int) -> None:
        self._set_marks([(since, min(low, self.debt)) for since, low in self.marks])
        lows = [low for since, low in self.marks if since <= taken_at_ms]
        if units > 0 and lows:
            credit = min(units, lows[-1])
            self.debt -= credit
            rest = lows[-1] - credit
            self._set_marks([(since, low - credit if low >= lows[-1] else min(low, rest)) for since, low in self.marks])

    def _set_marks(self, marks: list[tuple[int, int]]) -> None:
        """Of several marks with the same debt, the first one says it all."""
        self.marks = []
        for mark in marks:
            if not self.marks or mark[1] > self.marks[-1][1]:
                self.marks.append(mark)

    def _forget_marks(self) -> None:
        """Requests since a mark that is forgotten have the lower debt of the mark before it."""
        if len(self.marks) > MOST_MARKS:
            steps = [after[1] - before[1] for before, after in zip(self.marks, self.marks[1:], strict=False)]
            del self.marks[steps.index(min(steps)) + 1]


class BudgetWindow:
    """What is spent, or reserved, of a budget in the current day or month."""

    __slots__ = ("id", "reserved", "seeded_at_ms", "used")

    def __init__(self, id: int) -> None:
        self.id = id
        self.used = 0
        self.reserved = 0
        """The part of `used` that open requests have reserved."""
        self.seeded_at_ms = 0
        """When the ledger said what had been spent. 0 if it never did."""

    def advance(self, id: int) -> None:
        if id > self.id:
            self.id, self.used, self.reserved = id, 0, 0

    def add(self, amount: int, reserved: int = 0) -> None:
        """`reserved`: how much more of what is used is reserved."""
        self.used = min(MOST_COUNTED, max(0, self.used + amount))
        self.reserved = min(MOST_COUNTED, max(0, self.reserved + reserved))


def window_of(kind: LimitKind, at_ms: int) -> int:
    """The number of the day or month in UTC. Numbers rise."""
    day = at_ms // DAY_MS
    return _month_of(day) if kind.is_monthly else day


def window_start_ms(kind: LimitKind, at_ms: int) -> int:
    window = window_of(kind, at_ms)
    return (_first_day_of(window) if kind.is_monthly else window) * DAY_MS


def window_end_ms(kind: LimitKind, at_ms: int) -> int:
    day = at_ms // DAY_MS
    return (_first_day_of(_month_of(day) + 1) if kind.is_monthly else day + 1) * DAY_MS


def _month_of(day: int) -> int:
    """Months since the year 0. Years are counted from March on, so that the leap day ends one."""
    day += 719_468  # from 1970-01-01 to 0000-03-01
    era, of_era = divmod(day, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153  # 0 is March
    return (era * 400 + year) * 12 + month + 2


def _first_day_of(month: int) -> int:
    """Days since 1970 of the first day of a month as `_month_of` counts."""
    year, of_year = divmod(month - 2, 12)
    era, of_era = divmod(year, 400)
    day = (153 * of_year + 2) // 5 + of_era * 365 + of_era // 4 - of_era // 100
    return era * 146_097 + day - 719_468

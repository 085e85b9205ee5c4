"""The times that a page shows: when, how far apart, and over how long rates are taken, as Grafana chooses them. Pure.

Grafana divides the range by the width of a panel and rounds that to a step that reads well. No step is shorter than the
time between two scrapes. `$__rate_interval` is a step and a scrape, and at least four scrapes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

MOST_POINTS = 360
"""Points that a line should have at most; rounding makes it half as many again. More make the page larger, and no two
of them can be told apart; fewer hide short peaks.
"""
MOST_TICKS = 6
"""Ticks of the time axis. More run into each other; fewer make times hard to read."""
_STEPS = (
    *((1.5, 1), (3.5, 2), (7.5, 5), (12.5, 10), (17.5, 15), (25, 20), (45, 30), (90, 60), (210, 120), (450, 300)),
    *((750, 600), (1050, 900), (1500, 1200), (2700, 1800), (5400, 3600), (9000, 7200), (16200, 10800)),
    *((32400, 21600), (86400, 43200)),
)
"""Seconds below which Grafana rounds to the step beside them. A longer step is a day."""
_DAY = 86400
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, _DAY, 2 * _DAY, 7 * _DAY)
"""Seconds between two ticks of the time axis."""


class Window(msgspec.Struct, frozen=True):
    """The times of all points of a page, in seconds since 1970: from `start` until `end`, both of them included."""

    start: int
    end: int
    step: int
    """Seconds between two points."""
    scrape: int
    """Seconds between two scrapes."""

    @property
    def rate_interval(self) -> int:
        """Seconds over which rates are taken: Grafana's variable."""
        return max(self.step + self.scrape, 4 * self.scrape)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Times with their text, in UTC."""
        length = self.end - self.start
        between = next(
            (tick for tick in _TICKS if length <= tick * MOST_TICKS), -(-length // (MOST_TICKS * _DAY)) * _DAY
        )
        shown = "%H:%M" if between >= 60 else "%H:%M:%S"
        for time in range(-(-self.start // between) * between, self.end + 1, between):
            yield time, datetime.fromtimestamp(time, UTC).strftime(shown if time % _DAY else "%m-%d")

    def moment(self, time: float) -> str:
        """A time of it as a text, with the date where it is longer than a day."""
        shown = "%H:%M:%S" if self.end - self.start <= _DAY else "%m-%d %H:%M:%S"
        return datetime.fromtimestamp(time, UTC).strftime(shown)


def window(until: float, length: int, scrape: int) -> Window:
    """The window that ends at a time, in seconds since 1970. Its ends are multiples of its step, as Grafana's are."""
    wanted = length / MOST_POINTS
    step = max(scrape, next((step for below, step in _STEPS if wanted < below), _DAY))
    end = int(until // step) * step
    return Window(min(int((until - length) // step) * step, end - step), end, step, scrape)


def date(time: float) -> str:
    """A time as a text."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

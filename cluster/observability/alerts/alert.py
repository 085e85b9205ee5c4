"""What an alert is, and the PromQL that many alerts have in common. Pure.

No condition may forget three things. A rate over no traffic is NaN, which every comparison drops. A share of few
requests says nothing, so each share also needs `MIN_REQUESTS`. A replica may miss a scrape: gauges are read with
`latest`, or each missed scrape would begin the time of an alert anew. `increase` bridges gaps by itself. It does not
see the first increment of a series, so counters that `happened` reads are 0 from the start of a process on.
"""

from enum import StrEnum

import msgspec

JOB = "baton"
"""The name of the scrape job in `conf/prometheus/prometheus.yml`, which conditions about the scrape itself need."""
MIN_REQUESTS = 20
"""Requests in the window of a share of requests, below which no alert watches the share. Lower fires for a few unlucky
requests; higher watches no service with little traffic.
"""

GAP = "1m"
"""How long the last sample of a gauge stands in for missing ones. Longer goes on with the figures of what is gone;
shorter lets missed scrapes delay an alert, and may not be less than two scrape intervals.
"""


class Severity(StrEnum):
    PAGE = "page"
    """Users notice, or will within the hour: wake somebody."""
    TICKET = "ticket"
    """Somebody looks at it on the next working day."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert. Its runbook is the section of docs/runbooks.md with its name."""

    name: str
    condition: str
    """PromQL. The alert is pending for each series that it gives."""
    for_: str = "0s"
    """How long the condition must hold, as a duration of Prometheus. Longer misses short faults; shorter fires for what
    ends by itself.
    """
    severity: Severity
    summary: str
    """One line. `{{ $labels.model }}` and `{{ $value }}` are filled in by Prometheus."""
    description: str
    """What is wrong, with the figure and its limit."""

    @property
    def anchor(self) -> str:
        """The name of the section in docs/runbooks.md, as a link has it."""
        return self.name.lower()


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A query that conditions of the same group use more than once, evaluated before them."""

    name: str
    query: str


class AlertGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Alerts about one thing. Prometheus evaluates the rules of a group one after another."""

    name: str
    recordings: tuple[Recording, ...] = ()
    alerts: tuple[Alert, ...]


def increase(counter: str, by: str, window: str, where: str = "") -> str:
    """Increase of a counter in a window, summed over processes. `by`: the labels that stay apart."""
    return f"sum by ({by}) (increase({_series(counter, where)}[{window}]))"


def happened(counter: str, by: str, where: str = "", window: str = "10m") -> str:
    """True where a counter has risen at all in the window. The counter must be 0 from the start of its process on."""
    return f"{increase(counter, by, window, where)} > 0"


def latest(gauge: str) -> str:
    """The samples of a gauge, or the ones before if a replica has missed scrapes."""
    return f"last_over_time({gauge}[{GAP}])"


def _series(metric: str, where: str) -> str:
    return f"{metric}{{{where}}}" if where else metric

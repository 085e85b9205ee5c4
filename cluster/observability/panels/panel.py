"""What a panel is, and the PromQL that many panels have in common. Pure.

A query has three placeholders, which are Grafana's variables: `$model` and `$cell` are regular expressions of the
labels, and `$__rate_interval` is the window of rates. `plain` fills them in for a reader that is not Grafana.
"""

from enum import StrEnum

import msgspec

MODEL = 'model=~"$model"'
"""Matches the series of the chosen models. All series of Baton have the label."""
CELL = f'{MODEL},cell=~"$cell"'
"""Matches the series of Schedulers and workers in the chosen cells. Series of ingress replicas have no label `cell`."""
WINDOW = "$__rate_interval"
FIRING = 'ALERTS{alertname=~"Baton.*",alertstate="firing"}'
"""Baton's alerts that fire, which are shown beside the panels."""


class Unit(StrEnum):
    """The unit of a panel's axis, by Grafana's name for it."""

    SHARE = "percentunit"
    """0 to 1, shown as per cent."""
    SECONDS = "s"
    PER_SECOND = "reqps"
    TOKENS_PER_SECOND = "tokens/s"
    BYTES_PER_SECOND = "Bps"
    COUNT = "short"
    RATIO = "none"


class Curve(msgspec.Struct, frozen=True):
    """One query of a panel. It gives one line for each of its series."""

    query: str
    legend: str
    """Grafana's template of a line's name: `{{slo_class}}` is the value of a label."""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One panel of the dashboard."""

    title: str
    unit: Unit
    curves: tuple[Curve, ...]
    description: str
    bad_above: float | None = None
    """The value from which on the figure is bad. None if no value is, or if a low one is."""
    bad_below: float | None = None
    """The value below which the figure is bad. None if no value is, or if a high one is."""
    alerts: tuple[str, ...] = ()
    """Names of the alerts that watch this figure: the panel links to their runbooks."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A row of panels about one thing."""

    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str, matcher: str = MODEL) -> str:
    """Increase per second of a counter, summed over processes. `by`: the labels that stay apart."""
    return f"sum by ({by}) (rate({metric}{{{matcher}}}[{WINDOW}]))"


def share(part: str, whole: str) -> str:
    """`part` of `whole`: two vectors with the same labels. No line where `whole` is 0."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, histogram: str, by: str = "", matcher: str = MODEL) -> str:
    """A quantile of a histogram over all processes. `by`: the labels that stay apart, besides `le`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket{{{matcher}}}[{WINDOW}])))"


def quantiles(histogram: str, by: str, matcher: str = MODEL) -> tuple[Curve, ...]:
    """p50, p95 and p99 of a histogram. `by`: one label."""
    return tuple(Curve(quantile(q, histogram, by, matcher), f"{{{{{by}}}}} p{q * 100:.0f}") for q in (0.5, 0.95, 0.99))


def mean(histogram: str, by: str, matcher: str = MODEL) -> str:
    """The mean of a histogram."""
    return share(rate(f"{histogram}_sum", by, matcher), rate(f"{histogram}_count", by, matcher))


def latest(metric: str, by: str, matcher: str = CELL) -> str:
    """A gauge that one process sets, of which two may be scraped while one takes over from the other."""
    return f"max by ({by}) ({metric}{{{matcher}}})"


def total(metric: str, by: str, matcher: str = MODEL) -> str:
    """A gauge that each process sets for itself."""
    return f"sum by ({by}) ({metric}{{{matcher}}})"


def plain(query: str, model: str = ".*", cell: str = ".*", window: str = "5m") -> str:
    """The query with its placeholders filled in. `model`, `cell`: regular expressions. `window`: a duration."""
    for name, value in (("$__rate_interval", window), ("$model", model), ("$cell", cell)):
        query = query.replace(name, value)
    return query

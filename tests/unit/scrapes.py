"""Scrapes of processes as tests want them."""

from prometheus_client.metrics_core import Metric

from cluster.metrics.page import Family, Scrape, family_of


def a_family(name: str, *samples: tuple[dict[str, str], float], documentation: str = "", kind: str = "gauge") -> Family:
    """`name`: as the page has it, a counter with its suffix. `samples`: labels and value of each series."""
    metric = Metric(name.removesuffix("_total"), documentation, kind)
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return family_of(metric)


def a_scrape(deployment: str, replica: str, name: str, value: float) -> Scrape:
    return Scrape(deployment, replica, [a_family(name, ({}, value), documentation="Tokens.", kind="counter")])

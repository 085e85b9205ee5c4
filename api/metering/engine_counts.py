"""What engines have counted, read from the metrics of all processes."""

from collections import Counter
from collections.abc import Iterable

from api.metering.differences import EngineCount
from cluster.metrics.page import Scrape

GENERATED = "vllm:generation_tokens_total"
STARTED = "process_start_time_seconds"
UNREAD, UNCLAIMED = "baton_unread_tokens_total", "baton_unclaimed_tokens_total"
"""Tokens that no session has: as the ingress replicas have counted them, by worker, and as the workers have."""
PROBED = "baton_quality_probe_tokens_total"
"""Tokens of probes, which no tenant is charged for. Those of answers (part `answer`) are among the generated ones."""


def engine_counts(scrapes: Iterable[Scrape]) -> list[EngineCount]:
    """The counters of the engines that run now. The replica of a worker is the worker."""
    generated: dict[str, int] = {}
    started: dict[str, float] = {}
    unread: Counter[str] = Counter()
    for scrape in scrapes:
        for _, value in scrape.values(GENERATED):
            generated[scrape.replica] = generated.get(scrape.replica, 0) + round(value)
        for _, value in scrape.values(STARTED):
            started[scrape.replica] = value
        for labels, value in scrape.values(UNREAD):
            unread[labels["worker"]] += round(value)
        for labels, value in scrape.values(PROBED):
            if labels["part"] == "answer":
                unread[labels["worker"]] += round(value)
        for _, value in scrape.values(UNCLAIMED):
            unread[scrape.replica] += round(value)
    return [
        EngineCount(worker, tokens, started.get(worker, 0.0), unread[worker]) for worker, tokens in generated.items()
    ]

"""A service as its metrics show it: healthy, with everything wrong at once, and healthy again."""

import time
from collections.abc import Iterator, Mapping
from threading import Lock

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Labels = Mapping[str, str]
DAY_S = 86400.0
GOOD, BAD = 10.0, 40.0
"""Requests of one scrape."""


class World(Collector):
    """Counters rise with each scrape. Model `m` has most of what goes wrong. Model `n` has what needs something else to
    be well: its Scheduler leaves, two of its classes are bad beside many good requests, and few of its clients leave.
    No request to model `o` is good.
    """

    def __init__(self) -> None:
        self.is_broken = False
        self._lock = Lock()
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._found: list[tuple[str, str, dict[str, str], float]] = []

    @property
    def num_missing(self) -> dict[str, int]:
        """Replicas without metrics, by deployment. The page tells their number by itself."""
        return {"DecodeWorker": 1 if self.is_broken else 0}

    def series(self) -> list[tuple[str, dict[str, str]]]:
        """Name and labels of each series that a healthy or broken service shows."""
        shown = []
        for self.is_broken in (True, False):
            shown += [(sample.name, dict(sample.labels)) for metric in self.collect() for sample in metric.samples]
        return shown

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            self._found = []
            self._requests()
            self._prompts()
            self._workers()
            self._handoffs()
            self._records()
            self._event_loops()
            found = self._found
        families: dict[str, Metric] = {}
        for kind, name, labels, value in found:
            family = name.removesuffix("_total")
            if kind == "histogram":
                family = name.removesuffix("_bucket").removesuffix("_count")
            metric = families.setdefault(family, Metric(family, "A metric.", kind))
            metric.add_sample(name, labels, value)
        yield from families.values()

    def _gauge(self, name: str, value: float, **labels: str) -> None:
        self._found.append(("gauge", name, {"model": "m", **labels}, value))

    def _count(self, name: str, rise: float, kind: str = "counter", **labels: str) -> None:
        labels = {"model": "m", **labels}
        key = (name, tuple(labels.items()))
        self._counters[key] = self._counters.get(key, 0.0) + rise
        self._found.append((kind, name, labels, self._counters[key]))

    def _requests(self) -> None:
        bad = BAD if self.is_broken else 0.0
        goodput = {"name": "baton_goodput_requests_total", "path": "D"}
        self._count(rise=GOOD, result="good", slo_class="standard", **goodput)
        self._count(rise=bad, result="ttft_missed", slo_class="standard", **goodput)
        self._count(rise=100 * BAD, result="good", slo_class="standard", **goodput | {"model": "n"})
        self._count(rise=GOOD, result="good", slo_class="interactive", **goodput | {"model": "n"})
        self._count(rise=bad, result="tpot_missed", slo_class="interactive", **goodput | {"model": "n"})
        ttft = {"kind": "histogram", "path": "D", "slo_class": "standard"}
        for le, rise in (("1.0", GOOD), ("2.5", GOOD + bad), ("+Inf", GOOD + bad)):
            self._count("baton_time_to_first_token_seconds_bucket", rise, le=le, **ttft)
        self._count("baton_time_to_first_token_seconds_count", GOOD + bad, **ttft)
        closed = {"name": "baton_requests_total", "path": "D"}
        self._count(rise=GOOD, outcome="finished", **closed)
        self._count(rise=4 * GOOD, outcome="finished", **closed | {"model": "n"})
        self._count(rise=GOOD if self.is_broken else 0.0, outcome="aborted", **closed | {"model": "n"})
        for model in ("n", "o"):
            self._count(rise=bad, result="failed", slo_class="batch", **goodput | {"model": model})
        self._count(rise=bad, outcome="aborted", **closed)

    def _prompts(self) -> None:
        tokens = {"name": "baton_request_prompt_tokens_total", "role": "decode"}
        self._count(rise=90 * GOOD if self.is_broken else 10 * GOOD, source="computed", **tokens)
        self._count(rise=10 * GOOD if self.is_broken else 90 * GOOD, source="local", **tokens)

    def _workers(self) -> None:
        broken = self.is_broken
        self._gauge("baton_workers", 1.0 if broken else 2.0, pool="decode")
        self._gauge("baton_workers", 0.0 if broken else 1.0, pool="prefill")
        if not broken:
            self._gauge("baton_workers", 1.0, pool="decode", model="n")
            self._gauge("baton_worker_report_age_seconds", 0.2, pool="decode", worker="d1")
        self._gauge("baton_cell_configured", 1.0)
        self._gauge("baton_cell_configured", 1.0, model="n")
        self._gauge("baton_pool_configured", 2.0, pool="decode")
        self._count("baton_workers_lost_total", 1.0 if broken else 0.0, pool="decode")
        self._gauge("baton_worker_report_age_seconds", 0.2, pool="decode", worker="d0")
        self._gauge("baton_worker_kv_usage_ratio", 0.98 if broken else 0.5, pool="decode", worker="d0")

    def _handoffs(self) -> None:
        number = 1.0 if self.is_broken else 0.0
        self._count("baton_leases_ended_total", number, how="expired")
        self._count("baton_transfer_failures_total", number, reason="read_failed")
        self._gauge("baton_quality_probe_score", 0.75 if self.is_broken else 1.0, worker="d0", path="D")
        self._gauge("baton_quality_probe_score", 0.875 if self.is_broken else 1.0, worker="d1", path="D")
        self._count("baton_quality_probes_total", number, path="D", result="differs")
        self._gauge("baton_quality_quarantined_workers", number)
        self._gauge("baton_quality_reference_usable", 1.0 - number, origin="learned")

    def _records(self) -> None:
        number = 1.0 if self.is_broken else 0.0
        self._gauge("baton_ledger_lag_seconds", 400.0 if self.is_broken else 1.0)
        self._count("baton_usage_records_total", number, result="lost")
        self._count("baton_limit_settlements_lost_total", number)
        self._count("baton_safety_events_total", number, result="lost")
        self._gauge("baton_certificate_expires_seconds", time.time() + (6 * DAY_S if self.is_broken else 60 * DAY_S))

    def _event_loops(self) -> None:
        late = 10.0 if self.is_broken else 0.0
        for le, rise in (("0.005", 30.0 - late), ("0.25", 30.0 - late), ("0.5", 30.0), ("+Inf", 30.0)):
            self._count("baton_event_loop_lag_seconds_bucket", rise, kind="histogram", le=le)

"""The one table of Baton's metrics, and their way from every process of the application to one page.

Each process counts in its own prometheus registry, where vLLM's engine metrics are too. An ingress replica collects the
registries of all replicas when it is scraped, adds the labels `deployment` and `replica`, and renders one text.
"""

from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric

disable_created_metrics()  # type: ignore[no-untyped-call]

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

REQUESTS = Counter("baton_requests", "Requests closed, by where they ran and how they ended.", ["path", "outcome"])
PROMPT_TOKENS = Counter(
    "baton_prompt_tokens", "Prompt tokens that an engine started from, by where their KV came from.", ["pool", "source"]
)
OUTPUT_TOKENS = Counter("baton_output_tokens", "Tokens released to clients.")
TTFT = Histogram(
    "baton_time_to_first_token_seconds",
    "Arrival at the ingress to the first token.",
    ["path"],
    buckets=_LATENCY_BUCKETS_S,
)
TPOT = Histogram(
    "baton_request_time_per_output_token_seconds",
    "(E2E - TTFT) / (output tokens - 1), one observation per request.",
    ["path"],
    buckets=_LATENCY_BUCKETS_S,
)
ATTEMPTS = Counter("baton_attempts", "Placements that requests took: more than one each where workers failed.")
LEASES_OPEN = Gauge("baton_leases_open", "Hand-overs whose KV blocks this prefill worker keeps.", ["state"])
LEASES_ENDED = Counter("baton_leases_ended", "Hand-overs whose KV blocks have been freed, by how.", ["how"])
PULLS = Counter(
    "baton_pulls",
    "Hand-overs as this decode worker took them: redeemed, refused before the pull, or given up during it.",
    ["outcome"],
)
VERIFICATIONS = Counter("baton_verifications", "Hand-overs that were checked against the prefill engine.", ["result"])
WORKERS = Gauge("baton_workers", "Live workers, as the Scheduler sees them.", ["pool"])
LINKS = Gauge("baton_links", "Prefill-decode pairs that have proved a hand-over.")
PLACED = Gauge("baton_placed_requests", "Open requests that are charged to a worker.", ["pool", "worker"])


class Sample(msgspec.Struct, frozen=True, array_like=True):
    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """One metric of one process."""

    name: str
    documentation: str
    type: str
    samples: list[Sample]


class Scrape(msgspec.Struct, frozen=True):
    """One process's registry."""

    deployment: str
    replica: str
    families: list[Family]


def scrape(deployment: str, replica: str) -> Scrape:
    """This process's registry."""
    families = [
        Family(m.name, m.documentation, m.type, [Sample(s.name, dict(s.labels), s.value) for s in m.samples])
        for m in REGISTRY.collect()
    ]
    return Scrape(deployment, replica, families)


def render(scrapes: Iterable[Scrape]) -> bytes:
    """Prometheus text of all processes. Families of one name are merged, told apart by `deployment` and `replica`."""
    return generate_latest(_Merged(scrapes))


class _Merged:
    def __init__(self, scrapes: Iterable[Scrape]) -> None:
        self._scrapes = scrapes

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for one in self._scrapes:
            labels = {"deployment": one.deployment, "replica": one.replica}
            for family in one.families:
                metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.add_sample(sample.name, {**sample.labels, **labels}, sample.value)
        return iter(merged.values())

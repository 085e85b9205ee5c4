"""The one table of Baton's metrics, and their way from every process of the application to one page.

Each process counts in its own prometheus registry, where vLLM's engine metrics are too. An ingress replica collects the
registries of all replicas when it is scraped, adds the labels `deployment` and `replica`, and renders one text.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.messages.placement import Placement, Rejection
from cluster.messages.views import ClusterView
from cluster.network.strangers import STRANGERS

disable_created_metrics()  # type: ignore[no-untyped-call]

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

REQUESTS = Counter("baton_requests", "Requests closed, by where they ran and how they ended.", ["path", "outcome"])
HTTP_REFUSALS = Counter(
    "baton_http_refusals",
    "Requests and connections that an ingress replica refused before any route saw them, by the code of the error.",
    ["code"],
)
CONSTRAINTS = Counter(
    "baton_constraints",
    "Schemas, regular expressions and grammars of requests: compiled, invalid or too costly when they were tried, and "
    "answers that were ended for theirs.",
    ["result"],
)
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
GOODPUT = Counter(
    "baton_goodput_requests",
    "Requests closed, by SLO class, path, and what they are to goodput. Those that their clients ended do not count.",
    ["slo_class", "path", "result"],
)
PREDICTION_RATIO = Histogram(
    "baton_prediction_ratio",
    "Actual over predicted TTFT or TPOT (`of`) of requests that ran where they were first placed.",
    ["path", "of"],
    buckets=(0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0, 10.0),
)
REQUEST_PROMPT_TOKENS = Counter(
    "baton_request_prompt_tokens",
    "Prompt tokens of requests closed, by where their KV came from: on the worker that computed the prompt for another "
    "one (role prefill), and on the worker that generated (role decode).",
    ["role", "source"],
)
ATTEMPTS = Counter("baton_attempts", "Placements that requests took: more than one each where workers failed.")
LEASES_OPEN = Gauge("baton_leases_open", "Handoffs whose KV blocks this prefill worker keeps.", ["state"])
LEASES_ENDED = Counter("baton_leases_ended", "Handoffs whose KV blocks have been freed, by how.", ["how"])
PULLS = Counter(
    "baton_pulls",
    "Handoffs as this decode worker took them: redeemed, refused before the pull, given up during it, or failed in "
    "its engine.",
    ["outcome"],
)
LEASE_RELEASE = Histogram(
    "baton_lease_release_seconds",
    "From the moment at which nobody wants a handoff any more to its freed KV blocks.",
    buckets=(0.002, *_LATENCY_BUCKETS_S),
)
HANDOFF = Histogram(
    "baton_handoff_seconds",
    "On the decode worker: until the prefill worker's promise, and from there until the first token.",
    ["part"],
    buckets=(0.0005, 0.001, 0.002, *_LATENCY_BUCKETS_S),
)
VERIFICATIONS = Counter("baton_verifications", "Handoffs that were checked against the prefill engine.", ["result"])
WORKERS = Gauge("baton_workers", "Live workers, as the Scheduler sees them.", ["pool"])
LINKS = Gauge("baton_links", "Prefill-decode pairs that have proved a handoff.")
PLACED = Gauge("baton_placed_requests", "Open requests that are charged to a worker.", ["pool", "worker"])
INDEX_BLOCKS = Gauge("baton_prefix_index_blocks", "Different KV blocks that the Scheduler knows some worker to cache.")
INDEX_EXACT = Gauge(
    "baton_prefix_index_exact_workers", "Workers whose caches the Scheduler knows, with no change missed."
)
QUEUE = Gauge("baton_queue_requests", "Requests that wait in the Scheduler for a placement.")
PLACEMENTS = Counter(
    "baton_placements",
    "Answers of the Scheduler: placed by prediction, placed by fallback (the state is stale), refused for the load, or "
    "refused because no worker could take it.",
    ["answer"],
)
PLACEMENT = Histogram(
    "baton_placement_seconds",
    "From the question to the Scheduler's answer, time in its queue included.",
    buckets=(0.0005, 0.001, 0.002, *_LATENCY_BUCKETS_S),
)
STEP_ERROR = Gauge(
    "baton_step_prediction_error",
    "Moving average of the relative error of predicted engine steps: those that compute prompts, and those that only "
    "decode (`step`).",
    ["kind", "step"],
)
REQUEST_ERROR = Gauge(
    "baton_request_prediction_error",
    "Moving average of the relative error of predicted TTFT and TPOT (`of`).",
    ["path", "of"],
)
LINK_LATENCY = Gauge(
    "baton_link_latency_seconds", "Of a handoff of no size, as the start-up probe measured it.", ["prefill", "decode"]
)
LINK_BANDWIDTH = Gauge(
    "baton_link_bytes_per_second", "Of KV blocks, as the start-up probe measured it.", ["prefill", "decode"]
)


class _StrangersCollector:
    """Strangers are counted where no framework is known."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "baton_strangers",
            "Connections and messages that were dropped because whoever sent them did not belong to the cluster.",
            labels=["socket", "reason"],
        )
        for (socket, reason), number in STRANGERS.counts().items():
            family.add_metric([socket, reason], number)
        return iter([family])


REGISTRY.register(_StrangersCollector())


def set_link_speeds(view: ClusterView) -> None:
    """Those of pairs that are gone go with them."""
    LINK_LATENCY.clear()
    LINK_BANDWIDTH.clear()
    for decode in view.workers:
        for prefill, speed in decode.links.items():
            if speed is not None:
                LINK_LATENCY.labels(prefill, decode.worker).set(speed.latency_s)
                LINK_BANDWIDTH.labels(prefill, decode.worker).set(speed.bytes_per_s)


def count_placement(answer: Placement | Rejection) -> None:
    if isinstance(answer, Placement):
        how = "fallback" if answer.predicted is None else "predicted"
    else:
        how = "overload" if answer.is_overload else "no_worker"
    PLACEMENTS.labels(how).inc()


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """One metric of one process."""

    name: str
    documentation: str
    type: str
    samples: list[MetricSample]


class Scrape(msgspec.Struct, frozen=True):
    """One process's registry."""

    deployment: str
    replica: str
    families: list[Family]


def scrape(deployment: str, replica: str) -> Scrape:
    """This process's registry."""
    families = [
        Family(m.name, m.documentation, m.type, [MetricSample(s.name, dict(s.labels), s.value) for s in m.samples])
        for m in REGISTRY.collect()
    ]
    return Scrape(deployment, replica, families)


def render(scrapes: Iterable[Scrape], num_missing: Mapping[str, int] | None = None) -> bytes:
    """Prometheus text of all processes. Families of one name are merged, told apart by `deployment` and `replica`.

    `num_missing`: by deployment, how many of its replicas are not among the scrapes.
    """
    return generate_latest(_Merged(scrapes, num_missing or {}))


class _Merged:
    def __init__(self, scrapes: Iterable[Scrape], num_missing: Mapping[str, int]) -> None:
        self._scrapes = scrapes
        self._num_missing = num_missing

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for one in self._scrapes:
            labels = {"deployment": one.deployment, "replica": one.replica}
            for family in one.families:
                metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.add_sample(sample.name, {**sample.labels, **labels}, sample.value)
        if self._num_missing:
            merged["baton_scrape_missing"] = self._missing()
        return iter(merged.values())

    def _missing(self) -> Metric:
        family = GaugeMetricFamily(
            "baton_scrape_missing",
            "Replicas whose metrics this page lacks because they did not answer in time; 1 where it is not known how "
            "many a deployment has.",
            labels=["deployment"],
        )
        for deployment, number in self._num_missing.items():
            family.add_metric([deployment], number)
        return family

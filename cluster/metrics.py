"""The table of Baton's metrics, and how the metrics of all processes come to one page.

Each process counts in its own Prometheus registry, which also contains vLLM's engine metrics. An ingress replica that
is scraped collects the registries of all replicas, adds the labels `deployment` and `replica`, and renders one page.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.messages.ids import CellName, Pool
from cluster.messages.placement import Placement, Rejection
from cluster.messages.views import ClusterView
from cluster.network.certificates import own_certificates
from cluster.network.strangers import STRANGERS

disable_created_metrics()  # type: ignore[no-untyped-call]

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms' buckets, in seconds."""

REQUESTS = Counter("baton_requests", "Closed requests, by path and outcome.", ["path", "outcome"])
HTTP_REFUSALS = Counter(
    "baton_http_refusals",
    "Requests and connections that an ingress replica refused before they reached a route, by error code.",
    ["code"],
)
ADMIN_REFUSALS = Counter(
    "baton_admin_refusals",
    "Requests on the admin port that an ingress replica refused because of their credential: missing, malformed, "
    "wrong, or the API key of a tenant.",
    ["credential"],
)
CONSTRAINTS = Counter(
    "baton_constraints",
    "Constraints of requests (schemas, regular expressions, grammars), by the result of their trial: compiled, invalid "
    "or too costly; and answers that were ended because of their constraint.",
    ["result"],
)
SAFETY_DECISIONS = Counter(
    "baton_safety_decisions",
    "Texts of requests and answers that were screened, by direction and action: passed, masked, blocked, cut, ...",
    ["direction", "action"],
)
SAFETY_FAILURES = Counter(
    "baton_safety_stage_failures", "Texts that a stage of the screening has not scanned although it should.", ["stage"]
)
SAFETY_EVENTS = Counter(
    "baton_safety_events",
    "Events for the audit log of safety decisions, by what became of them: written, lost because too many wait, or "
    "dropped because their tenant was erased.",
    ["result"],
)
SAFETY_EVENTS_WAITING = Gauge("baton_safety_events_waiting", "Safety events that wait to be written into PostgreSQL.")
LIMIT_DECISIONS = Counter(
    "baton_limit_decisions",
    "Requests that limits have granted or denied (label `decision`), and where they were counted: in Redis, in this "
    "replica while Redis was away, before for another request of the last second, or nowhere because neither may "
    "decide.",
    ["decision", "counted"],
)
SETTLEMENTS_WAITING = Gauge(
    "baton_limit_settlements_waiting", "Requests that have ended and whose actual use Redis has not taken yet."
)
SETTLEMENTS_LOST = Counter(
    "baton_limit_settlements_lost", "Settlements that were given up: too many waited for Redis, or the replica ended."
)
USAGE_RECORDS = Counter(
    "baton_usage_records",
    "Records of usage, by what became of them: written into the ledger, refused by it, or lost because too many wait.",
    ["result"],
)
USAGE_RECORDS_WAITING = Gauge(
    "baton_usage_records_waiting", "Records of usage that wait to be written into the ledger."
)
PROMPT_TOKENS = Counter(
    "baton_prompt_tokens", "Prompt tokens that engines processed, by the source of their KV.", ["pool", "source"]
)
OUTPUT_TOKENS = Counter("baton_output_tokens", "Output tokens released to clients.")
TTFT = Histogram(
    "baton_time_to_first_token_seconds",
    "Seconds from the arrival of a request at the ingress to its first token.",
    ["path"],
    buckets=_LATENCY_BUCKETS_S,
)
TPOT = Histogram(
    "baton_request_time_per_output_token_seconds",
    "Mean seconds between the tokens of a request after the first one: (E2E - TTFT) / (output tokens - 1).",
    ["path"],
    buckets=_LATENCY_BUCKETS_S,
)
GOODPUT = Counter(
    "baton_goodput_requests",
    "Closed requests, by SLO class, path and result for goodput. Requests that their clients ended do not count.",
    ["slo_class", "path", "result"],
)
PREDICTION_RATIO = Histogram(
    "baton_prediction_ratio",
    "Actual divided by predicted TTFT or TPOT (label `of`), for requests that ran on their first placement.",
    ["path", "of"],
    buckets=(0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0, 10.0),
)
REQUEST_PROMPT_TOKENS = Counter(
    "baton_request_prompt_tokens",
    "Prompt tokens of closed requests, by the source of their KV: on the worker that computed the prompt for a decode "
    "worker (role prefill), and on the worker that generated (role decode).",
    ["role", "source"],
)
ATTEMPTS = Counter(
    "baton_attempts", "Placements of closed requests. A request has more than one if workers failed or it paused."
)
PAUSES = Counter(
    "baton_pauses", "Pauses of closed requests, which gave their room to requests of a higher class.", ["slo_class"]
)
PAUSES_ASKED = Counter(
    "baton_pauses_asked",
    "Pauses that the Scheduler has asked ingresses for. A request that ends, fails or moves first does not pause.",
    ["slo_class"],
)
LEASES_OPEN = Gauge("baton_leases_open", "Leases whose KV blocks this prefill worker keeps, by state.", ["state"])
LEASES_ENDED = Counter(
    "baton_leases_ended", "Leases whose KV blocks this prefill worker has freed, by how the lease ended.", ["how"]
)
PULLS = Counter(
    "baton_pulls",
    "Handoffs of this decode worker: redeemed, refused before the pull, given up during the pull, or failed in the "
    "engine.",
    ["outcome"],
)
LEASE_RELEASE = Histogram(
    "baton_lease_release_seconds",
    "Seconds from the moment when a lease's KV blocks are no longer wanted until they are freed.",
    buckets=(0.002, *_LATENCY_BUCKETS_S),
)
HANDOFF = Histogram(
    "baton_handoff_seconds",
    "Seconds of a handoff on the decode worker: until the prefill worker's promise (part redeem), and from the promise "
    "to the first token (part first_token).",
    ["part"],
    buckets=(0.0005, 0.001, 0.002, *_LATENCY_BUCKETS_S),
)
VERIFICATIONS = Counter(
    "baton_verifications",
    "Verified handoffs, by result. Of those that are neither `agrees` nor `cleared`, each is a strike against the pair "
    "of workers.",
    ["result"],
)
CONVICTIONS = Counter(
    "baton_handoff_convictions",
    "Pairs of workers that hand nothing over for a while after the second strike, by the result of that check.",
    ["result"],
)
TOLERANCE = Gauge(
    "baton_handoff_tolerance_nats",
    "Largest distance of two engines that counts as rounding in the verification of handoffs, as learned, by the kinds "
    "of the prefill and the decode engine.",
    ["prefill", "decode"],
)
WORKERS = Gauge("baton_workers", "Live workers, by pool.", ["pool"])
POOL_WANTED = Gauge("baton_pool_wanted", "Workers that the expected load needs, by pool.", ["pool"])
POOL_TARGET = Gauge(
    "baton_pool_target",
    "Workers that Serve is asked for, by pool: more than wanted while workers are emptied.",
    ["pool"],
)
RETIRING = Gauge("baton_retiring_workers", "Workers that are used last, because they will be stopped.")
EXPECTED_REQUESTS = Gauge(
    "baton_expected_requests_per_second", "Requests that are expected when a worker that is ordered now is ready."
)
SCALING_CORRECTION = Gauge(
    "baton_scaling_correction", "Workers that turned out to be needed for each one that the latency models ask for."
)
UNREAD_TOKENS = Counter(
    "baton_unread_tokens",
    "Generated tokens that came to an ingress replica for a session that had ended, by the worker that sent them.",
    ["worker"],
)
UNCLAIMED_TOKENS = Counter(
    "baton_unclaimed_tokens",
    "Tokens that this worker's engine has generated for no session, by why: warm-up, probe (of a link), or abandoned "
    "(the session has ended while its prompt was computed).",
    ["why"],
)
LINKS = Gauge(
    "baton_links",
    "Links of each decode worker: prefill workers from which a handoff to it has worked. 0 for a worker that gets no "
    "handoffs.",
    ["decode"],
)
PLACED = Gauge("baton_placed_requests", "Open requests that are charged to a worker, by worker.", ["pool", "worker"])
INDEX_BLOCKS = Gauge(
    "baton_prefix_index_blocks", "Different KV blocks that the Scheduler knows to be cached by a worker."
)
INDEX_EXACT = Gauge("baton_prefix_index_exact_workers", "Workers whose caches the Scheduler knows exactly.")
HOLDS = Gauge(
    "baton_hold_seconds",
    "Length of each hold that lasts: an ingress gets no placement on a worker that it could not reach.",
    ["ingress", "worker"],
)
QUEUE = Gauge("baton_queue_requests", "Requests that wait in the Scheduler for a placement.")
PLACEMENTS = Counter(
    "baton_placements",
    "Answers of the Scheduler: placed by prediction, placed by fallback (the state is stale), refused because of the "
    "load, refused because engines were lost with the same request, or refused because no worker could take it.",
    ["answer"],
)
PLACEMENT = Histogram(
    "baton_placement_seconds",
    "Seconds from a placement request to the Scheduler's answer, the time in its queue included.",
    buckets=(0.0005, 0.001, 0.002, *_LATENCY_BUCKETS_S),
)
CELL_REQUESTS = Gauge(
    "baton_cell_requests", "Open requests of an ingress replica in each cell, where there are several.", ["cell"]
)
CELL_LEFT = Counter(
    "baton_cell_left_requests",
    "Requests that left a cell for another one, by the cell that they left and the reason: its Scheduler or its "
    "workers were away, it refused for the load, it had no worker for the request, or it drained.",
    ["cell", "reason"],
)
STEP_ERROR = Gauge(
    "baton_step_prediction_error",
    "Moving average of the relative error of predicted engine steps, for steps that compute prompts and steps that "
    "only decode (label `step`).",
    ["kind", "step"],
)
REQUEST_ERROR = Gauge(
    "baton_request_prediction_error",
    "Moving average of the relative error of predicted TTFT and TPOT (label `of`).",
    ["path", "of"],
)
LINK_LATENCY = Gauge(
    "baton_link_latency_seconds",
    "Seconds of an empty handoff over a link, as measured over one link of its class.",
    ["prefill", "decode"],
)
LINK_BANDWIDTH = Gauge(
    "baton_link_bytes_per_second",
    "Bytes of KV blocks per second over a link, as measured over one link of its class.",
    ["prefill", "decode"],
)


class _StrangersCollector:
    """Exports the counts of cluster/network/strangers.py, which does not know Prometheus."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "baton_strangers",
            "Connections and messages that were dropped because their sender does not belong to the cluster.",
            labels=["socket", "reason"],
        )
        for (socket, reason), number in STRANGERS.counts().items():
            family.add_metric([socket, reason], number)
        return iter([family])


REGISTRY.register(_StrangersCollector())


class _CertificateCollector:
    """Exports when the certificate of this process ends, if its connections are encrypted."""

    def collect(self) -> Iterator[Metric]:
        if (own := own_certificates()) is not None:
            yield GaugeMetricFamily(
                "baton_certificate_expires_seconds",
                "Unix time at which the certificate ends that this process uses for new connections (network.tls).",
                own.contexts().expires_at,
            )


REGISTRY.register(_CertificateCollector())


def set_links(view: ClusterView) -> None:
    """Set the metrics of all links. Links of workers that are gone disappear."""
    LINKS.clear()
    LINK_LATENCY.clear()
    LINK_BANDWIDTH.clear()
    for decode in view.workers:
        if decode.pool is Pool.DECODE:
            LINKS.labels(decode.worker).set(len(decode.links))
        for prefill, speed in decode.links.items():
            if speed is not None:
                LINK_LATENCY.labels(prefill, decode.worker).set(speed.latency_s)
                LINK_BANDWIDTH.labels(prefill, decode.worker).set(speed.bytes_per_s)


def count_placement(answer: Placement | Rejection) -> None:
    if isinstance(answer, Placement):
        how = "fallback" if answer.predicted is None else "predicted"
    else:
        how = "quarantined" if answer.is_quarantined else "overload" if answer.is_overload else "no_worker"
    PLACEMENTS.labels(how).inc()


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One sample of a metric."""

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
    """The registry of one process."""

    deployment: str
    replica: str
    families: list[Family]
    cell: CellName | None = None
    """The cell of the process, if there are several. An ingress replica belongs to none."""


def scrape(deployment: str, replica: str) -> Scrape:
    """The registry of this process."""
    families = [
        Family(m.name, m.documentation, m.type, [MetricSample(s.name, dict(s.labels), s.value) for s in m.samples])
        for m in REGISTRY.collect()
    ]
    return Scrape(deployment, replica, families)


def render(scrapes: Iterable[Scrape], num_missing: Mapping[str, int] | None = None) -> bytes:
    """The Prometheus page of all processes. Metrics of one name are merged; the labels `deployment` and `replica` tell
    their samples apart, and `cell` the cells if there are several.

    `num_missing` is the number of replicas without a scrape, by deployment.
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
            labels |= {"cell": one.cell} if one.cell is not None else {}
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
            "Replicas whose metrics are missing on this page because they did not answer in time; 1 if the number of "
            "replicas is not known.",
            labels=["deployment"],
        )
        for deployment, number in self._num_missing.items():
            family.add_metric([deployment], number)
        return family

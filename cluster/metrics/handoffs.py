"""Metrics of leases, handoffs, their verification, and links."""

from prometheus_client import Counter, Gauge, Histogram

from cluster.messages.ids import Pool
from cluster.messages.views import ClusterView
from cluster.metrics.buckets import LATENCY_BUCKETS_S

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
    buckets=(0.002, *LATENCY_BUCKETS_S),
)
HANDOFF = Histogram(
    "baton_handoff_seconds",
    "Seconds of a handoff on the decode worker: until the prefill worker's promise (part redeem), and from the promise "
    "to the first token (part first_token).",
    ["part"],
    buckets=(0.0005, 0.001, 0.002, *LATENCY_BUCKETS_S),
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
LINKS = Gauge(
    "baton_links",
    "Links of each decode worker: prefill workers from which a handoff to it has worked. 0 for a worker that gets no "
    "handoffs.",
    ["decode"],
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

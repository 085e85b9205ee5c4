"""Metrics of leases, handoffs, their verification, and links."""

from heapq import nsmallest

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
    "Seconds of a handoff on the decode worker: until the prefill worker's promise (part redeem), from the promise to "
    "the first token (part first_token), and in it the read of the KV blocks (part pull).",
    ["part"],
    buckets=(0.0005, 0.001, 0.002, *LATENCY_BUCKETS_S),
)
TRANSFER_BYTES = Counter("baton_transfer_bytes", "Bytes of KV blocks that this decode worker's engine has read.")
TRANSFER_FAILURES = Counter(
    "baton_transfer_failures",
    "Handoffs after which the decode worker has computed the prompt itself, by why: refused (by the prefill worker), "
    "unreachable (the prefill worker did not answer before the read, or while it lasted), too_slow (the read did not "
    "end within pull_timeout_s), promise_ended, or read_failed.",
    ["reason"],
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
    "Seconds of an empty handoff over a link, as measured over one link of its class; of the slowest links.",
    ["prefill", "decode"],
)
LINK_BANDWIDTH = Gauge(
    "baton_link_bytes_per_second",
    "Bytes of KV blocks per second over a link, as measured over one link of its class; of the slowest links.",
    ["prefill", "decode"],
)
MAX_LINKS = 1000
"""Links whose speed is shown, the slowest ones. A cluster of 500 prefill and 500 decode workers may have 250,000. More
makes the page longer; fewer may not show a link that is looked for (`baton probe` lists all).
"""

LEASES_ENDED.labels("expired")  # 0 from the start on: `increase` does not see the first increment of a new series
for _reason in ("refused", "unreachable", "too_slow", "promise_ended", "read_failed"):
    TRANSFER_FAILURES.labels(_reason)


def set_links(view: ClusterView) -> None:
    """Set the metrics of links. Links of workers that are gone disappear."""
    LINKS.clear()
    LINK_LATENCY.clear()
    LINK_BANDWIDTH.clear()
    measured: list[tuple[float, str, str, float]] = []
    for decode in view.workers:
        if decode.pool is Pool.DECODE:
            LINKS.labels(decode.worker).set(len(decode.links))
        measured += [
            (speed.bytes_per_s, prefill, decode.worker, speed.latency_s)
            for prefill, speed in decode.links.items()
            if speed is not None
        ]
    for bytes_per_s, prefill, worker, latency_s in nsmallest(MAX_LINKS, measured):
        LINK_LATENCY.labels(prefill, worker).set(latency_s)
        LINK_BANDWIDTH.labels(prefill, worker).set(bytes_per_s)

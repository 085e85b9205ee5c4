"""Metrics of the Scheduler: workers, placements, the queue, the prefix index, and the errors of its predictions."""

from prometheus_client import Counter, Gauge, Histogram

from cluster.messages.ids import Pool
from cluster.messages.placement import Placement, Rejection
from cluster.metrics.buckets import LATENCY_BUCKETS_S

PAUSES_ASKED = Counter(
    "baton_pauses_asked",
    "Pauses that the Scheduler has asked ingresses for. A request that ends, fails or moves first does not pause.",
    ["slo_class"],
)
WORKERS = Gauge("baton_workers", "Live workers, by pool.", ["pool"])
WORKERS_LOST = Counter(
    "baton_workers_lost",
    "Workers that have vanished, by pool: silent for 6 s while others report, or their engine has hung. A worker that "
    "leaves in order does not count, nor does one that an operator drains or that the autoscaler is about to stop.",
    ["pool"],
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
MAX_HOLDS = 1000
"""Holds that are shown, the longest ones: of each ingress process and worker there may be one. More makes the page
longer; fewer may not show a hold that is looked for.
"""
QUEUE = Gauge("baton_queue_requests", "Requests that wait in the Scheduler for a placement.", ["slo_class"])
REPORT_AGE = Gauge(
    "baton_worker_report_age_seconds",
    "Seconds since the last report of a worker. A worker reports four times a second, and is forgotten after 6 s, "
    "unless no other worker reports either.",
    ["pool", "worker"],
)
KV_USAGE = Gauge(
    "baton_worker_kv_usage_ratio",
    "Share of a worker's KV blocks that requests use, as last reported: 0 to 1.",
    ["pool", "worker"],
)
RUNNING = Gauge(
    "baton_worker_running_requests", "Requests in the batch of a worker's engine, as last reported.", ["pool", "worker"]
)
WAITING = Gauge(
    "baton_worker_waiting_requests",
    "Requests that wait in a worker's engine for a place in its batch, as last reported.",
    ["pool", "worker"],
)
PLACEMENTS = Counter(
    "baton_placements",
    "Answers of the Scheduler: placed by prediction, placed by fallback (the state is stale), refused because of the "
    "load, refused because engines were lost with the same request, or refused because no worker could take it.",
    ["answer"],
)
PLACEMENT = Histogram(
    "baton_placement_seconds",
    "Seconds from a placement request to the Scheduler's answer, the time in its queue included.",
    buckets=(0.0005, 0.001, 0.002, *LATENCY_BUCKETS_S),
)
STIMULUS_BYTES = Counter("baton_stimulus_log_bytes", "Bytes that the Scheduler has written to its stimulus log.")
STIMULI_LOST = Counter(
    "baton_stimulus_log_lost_records",
    "Records that the stimulus log lacks: they came faster than they could be written, or writing failed.",
)
SNAPSHOT = Histogram(
    "baton_stimulus_log_snapshot_seconds",
    "Seconds for which the Scheduler decided nothing while it took a snapshot for the stimulus log.",
    buckets=(0.001, 0.002, *LATENCY_BUCKETS_S),
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

for _pool in Pool:
    WORKERS_LOST.labels(_pool)  # 0 from the start on: `increase` does not see the first increment of a new series


def count_placement(answer: Placement | Rejection) -> None:
    if isinstance(answer, Placement):
        how = "fallback" if answer.predicted is None else "predicted"
    else:
        how = "quarantined" if answer.is_quarantined else "overload" if answer.is_overload else "no_worker"
    PLACEMENTS.labels(how).inc()

"""Metrics of requests, counted by ingress replicas."""

from prometheus_client import Counter, Gauge, Histogram

from cluster.metrics.buckets import ANSWER_BUCKETS_S, GAP_BUCKETS_S, LATENCY_BUCKETS_S
from cluster.metrics.counted_histogram import CountedHistogram

REQUESTS = Counter(
    "baton_requests",
    "Closed requests, by path (`none` for a request that was never placed), SLO class and outcome: finished, aborted "
    "(the client has left, or has read too slowly), rejected, or failed.",
    ["path", "slo_class", "outcome"],
)
REJECTIONS = Counter(
    "baton_rejections",
    "Requests that were refused after they had been checked and rendered, by why: overload, no_worker (none could take "
    "the request), quarantined (engines were lost with the same request), or no_token (no worker gave a token "
    "within ingress.first_token_timeout_s).",
    ["slo_class", "reason"],
)
HTTP_REFUSALS = Counter(
    "baton_http_refusals",
    "Requests and connections that an ingress replica refused before they reached a route, by error code.",
    ["code"],
)
WEBSOCKETS = Gauge("baton_websockets", "Open WebSocket connections of an ingress replica.")
WEBSOCKET_MESSAGES = Counter(
    "baton_websocket_messages",
    "Messages on WebSocket connections, by what became of them: answered (with all events of a response), refused, "
    "failed (after the first event), or left (the connection ended before the response).",
    ["outcome"],
)
CONSTRAINTS = Counter(
    "baton_constraints",
    "Constraints of requests (schemas, regular expressions, grammars), by the result of their trial: compiled, invalid "
    "or too costly; and answers that were ended because of their constraint.",
    ["result"],
)
OUTPUT_TOKENS = Counter("baton_output_tokens", "Output tokens released to clients.")
TTFT = Histogram(
    "baton_time_to_first_token_seconds",
    "Seconds from the arrival of a request at the ingress to its first token. A client that left without a token, and "
    "later than its TTFT objective, counts with the time that it had waited.",
    ["path", "slo_class"],
    buckets=LATENCY_BUCKETS_S,
)
TTFT_UNMEASURED = Histogram(
    "baton_time_to_first_token_unmeasured_seconds",
    "Seconds of a request's TTFT that are left between measured stages, by part: way (between ingress and worker), "
    "wait (on a worker, between two of its stages), or worker (which has measured nothing). A request without a part "
    "does not count for it.",
    ["path", "part"],
    buckets=(0.001, 0.002, *LATENCY_BUCKETS_S),
)
TPOT = Histogram(
    "baton_request_time_per_output_token_seconds",
    "Mean seconds between the tokens of a request after the first one: (E2E - TTFT) / (output tokens - 1).",
    ["path", "slo_class"],
    buckets=LATENCY_BUCKETS_S,
)
ITL = CountedHistogram(
    "baton_inter_token_latency_seconds",
    "Seconds between two tokens of a request as they were given to the client, recorded when the request is closed. "
    "Where several tokens come at a time, the gap before them is divided by their number.",
    ["path", "slo_class"],
    buckets=GAP_BUCKETS_S,
)
REQUEST = Histogram(
    "baton_request_seconds",
    "Seconds from the arrival of a request at the ingress to the end of its answer. Requests that finished only.",
    ["path", "slo_class"],
    buckets=ANSWER_BUCKETS_S,
)
REQUEST_QUEUE = Histogram(
    "baton_request_queue_seconds",
    "Seconds that a request has waited for the answers of the Scheduler, over all its placements; also of requests "
    "that were refused.",
    ["slo_class"],
    buckets=(0.0005, 0.001, 0.002, *LATENCY_BUCKETS_S),
)
GOODPUT = Counter(
    "baton_goodput_requests",
    "Closed requests, by SLO class, path and result for goodput. Requests that their clients ended do not "
    "count, but for those that had waited for their first token for longer than their TTFT objective: ttft_missed.",
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
UNREAD_TOKENS = Counter(
    "baton_unread_tokens",
    "Generated tokens that came to an ingress replica for a session that had ended, by the worker that sent them.",
    ["worker"],
)

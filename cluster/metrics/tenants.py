"""Metrics of identity, limits and the ledger."""

from prometheus_client import Counter, Gauge

ADMIN_REFUSALS = Counter(
    "baton_admin_refusals",
    "Requests on the admin port that an ingress replica refused because of their credential: missing, malformed, "
    "wrong, or the API key of a tenant.",
    ["credential"],
)
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
LEDGER_LAG = Gauge(
    "baton_ledger_lag_seconds",
    "Age of the oldest record of usage of this replica that is not in the ledger. 0 if there is none.",
)
TENANT_REQUESTS = Counter(
    "baton_tenant_requests",
    "Closed requests of a tenant, by outcome, if metrics.tenants is set. Tenants beyond the first metrics.max_tenants "
    "of a replica are `other`.",
    ["tenant", "outcome"],
)
TENANT_TOKENS = Counter(
    "baton_tenant_tokens",
    "Tokens of a tenant's closed requests, by kind: prompt, or output (given to the client), if metrics.tenants is "
    "set.",
    ["tenant", "kind"],
)
TENANT_GOODPUT = Counter(
    "baton_tenant_goodput_requests",
    "Closed requests of a tenant by result for goodput, as baton_goodput_requests, if metrics.tenants is set.",
    ["tenant", "result"],
)

for _result in ("refused", "lost"):
    USAGE_RECORDS.labels(_result)  # 0 from the start on: `increase` does not see the first increment of a new series

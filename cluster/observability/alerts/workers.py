"""Alerts about workers, pools, the Scheduler and handoffs. Pure."""

from cluster.observability.alerts.alert import Alert, AlertGroup, Recording, Severity, happened, latest

MAX_KV_USAGE = 0.95
"""Share of a worker's KV blocks in use above which the next requests find no room."""
SILENT_S = 30
"""Seconds without a report after which a worker counts as silent, where the Scheduler does not forget it after 6 s."""
LOST_FOR = "15m"
"""How long the loss of a worker is told. Shorter than BatonPoolSmall waits leaves a time in which nothing tells that a
worker is missing; longer goes on when another worker has taken the place.
"""

EXPECTED = "model_cell_pool:baton_workers:expected"
BY_WORKER = "model, cell, pool, worker"
BY_POOL = "model, cell, pool"
WANTED = f"max by ({BY_POOL}) ({latest('baton_pool_wanted')})"
LIVE = f"max by ({BY_POOL}) ({latest('baton_workers')})"

POOLS = AlertGroup(
    name="baton-pools",
    recordings=(
        Recording(
            name=EXPECTED,
            query=f"{WANTED}\nor max by ({BY_POOL}) ({latest('baton_pool_configured')})",
        ),
    ),
    alerts=(
        Alert(
            name="BatonWorkerSilent",
            # The Scheduler forgets a silent worker after 6 s, and counts it as lost. It keeps the worker only while no
            # other one reports.
            condition=f"{happened('baton_workers_lost_total', BY_POOL, window=LOST_FOR)}\n"
            f"or max by ({BY_POOL}) ({latest('baton_worker_report_age_seconds')}) > {SILENT_S}",
            severity=Severity.TICKET,
            summary="A {{ $labels.pool }} worker of {{ $labels.model }} has vanished",
            description="A worker has stopped reporting in the last quarter of an hour, without having said that it "
            "leaves, or its engine has hung. Serve starts another worker if the process is gone.",
        ),
        Alert(
            name="BatonPoolEmpty",
            # A pool that sizes itself may want no workers
            condition=f"{LIVE} == 0 unless {WANTED} == 0",
            for_="1m",
            severity=Severity.PAGE,
            summary="The {{ $labels.pool }} pool of {{ $labels.model }} has no worker",
            description="No worker of the pool has reported for a minute. Requests run on the other pool, or wait.",
        ),
        Alert(
            name="BatonPoolSmall",
            condition=f"{LIVE} < {EXPECTED}",
            for_="10m",
            severity=Severity.TICKET,
            summary="The {{ $labels.pool }} pool of {{ $labels.model }} has only {{ $value }} workers",
            description="The pool has had fewer workers than the expected load needs, or than the config says where "
            "pools have a fixed size, for ten minutes.",
        ),
        Alert(
            name="BatonKvUsageHigh",
            condition=f"max by ({BY_WORKER}) ({latest('baton_worker_kv_usage_ratio')}) > {MAX_KV_USAGE}",
            for_="2m",
            severity=Severity.TICKET,
            summary="The KV cache of {{ $labels.pool }} worker {{ $labels.worker }} is "
            "{{ $value | humanizePercentage }} full",
            description="Running requests have used more than 95 % of a worker's KV blocks for two minutes. Requests "
            "wait for room, or are preempted.",
        ),
    ),
)

SCHEDULER = AlertGroup(
    name="baton-scheduler",
    alerts=(
        Alert(
            name="BatonSchedulerAway",
            # The Scheduler alone exports `baton_workers`, always for both pools
            condition=f"max by (model, cell) ({latest('baton_cell_configured')})\n"
            f"unless max by (model, cell) ({latest('baton_workers')})",
            for_="30s",
            severity=Severity.PAGE,
            summary="The Scheduler of {{ $labels.model }} {{ $labels.cell }} is away",
            description="The page of metrics has had no figures of the Scheduler of a configured cell for a minute and "
            "a half. Ingress replicas place by themselves, without predictions.",
        ),
    ),
)

HANDOFFS = AlertGroup(
    name="baton-handoffs",
    alerts=(
        Alert(
            name="BatonLeasesExpiring",
            condition=happened("baton_leases_ended_total", "model, cell", 'how="expired"'),
            severity=Severity.TICKET,
            summary="Leases of {{ $labels.model }} expire",
            description="Prefill workers have freed KV blocks that no decode worker fetched in time, in the last ten "
            "minutes.",
        ),
        Alert(
            name="BatonTransfersFailing",
            condition=happened("baton_transfer_failures_total", "model, cell, reason"),
            severity=Severity.TICKET,
            summary="Handoffs of {{ $labels.model }} fail: {{ $labels.reason }}",
            description="Decode workers could not read KV blocks in the last ten minutes, and computed the prompts "
            "themselves.",
        ),
    ),
)

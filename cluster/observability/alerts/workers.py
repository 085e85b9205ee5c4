"""Alerts about workers, pools, the Scheduler and handoffs. Pure."""

from cluster.observability.alerts.alert import JOB, Alert, AlertGroup, Recording, Severity, happened

MAX_KV_USAGE = 0.95
"""Share of a worker's KV blocks in use above which the next requests find no room."""
SILENT_S = 30
"""Seconds without a report after which a worker counts as silent. The Scheduler places nothing on it long before."""
MIN_SCORE = 0.95
"""Score of the quality probe below which answers have become worse."""

EXPECTED = "model_cell_pool:baton_workers:expected"
BY_WORKER = "model, cell, pool, worker"
BY_POOL = "model, cell, pool"
LIVE = f"max by ({BY_POOL}) (baton_workers)"

POOLS = AlertGroup(
    name="baton-pools",
    recordings=(
        Recording(
            name=EXPECTED,
            # A pool of a fixed size has no metric of its size: what it mostly had in the last hours stands for it
            query=f"max by ({BY_POOL}) (baton_pool_wanted)\n"
            f"or max by ({BY_POOL}) (quantile_over_time(0.5, baton_workers[6h]))",
        ),
    ),
    alerts=(
        Alert(
            name="BatonWorkerSilent",
            # The Scheduler forgets a silent worker after 6 s, so its series ends. That of a worker that was stopped on
            # purpose ends, too: then the pool has as many workers as it should.
            condition=f"max by ({BY_WORKER}) (baton_worker_report_age_seconds) > {SILENT_S}\n"
            "or (\n"
            f"  max by ({BY_WORKER}) (max_over_time(baton_worker_report_age_seconds[10m]))\n"
            f"  unless max by ({BY_WORKER}) (max_over_time(baton_worker_report_age_seconds[{SILENT_S}s]))\n"
            f")\n"
            f"and on ({BY_POOL}) {LIVE} < {EXPECTED}",
            for_="15s",
            severity=Severity.TICKET,
            summary="The {{ $labels.pool }} worker {{ $labels.worker }} of {{ $labels.model }} has stopped reporting",
            description="The Scheduler has not heard from a worker for 30 s, and its pool has fewer workers than it "
            "should. Serve starts another worker if the process is gone.",
        ),
        Alert(
            name="BatonPoolEmpty",
            # A pool that sizes itself may want no workers
            condition=f"{LIVE} == 0 unless max by ({BY_POOL}) (baton_pool_wanted) == 0",
            for_="1m",
            severity=Severity.PAGE,
            summary="The {{ $labels.pool }} pool of {{ $labels.model }} has no worker",
            description="No worker of the pool has reported for a minute. Requests run on the other pool, or wait.",
        ),
        Alert(
            name="BatonPoolSmall",
            condition=f"{LIVE} < {EXPECTED}",
            for_="15m",
            severity=Severity.TICKET,
            summary="The {{ $labels.pool }} pool of {{ $labels.model }} has only {{ $value }} workers",
            description="The pool has had fewer workers than the expected load needs, or than it mostly had in the "
            "last six hours, for a quarter of an hour.",
        ),
        Alert(
            name="BatonKvUsageHigh",
            condition=f"max by ({BY_WORKER}) (baton_worker_kv_usage_ratio) > {MAX_KV_USAGE}",
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
            condition="(\n"
            "  max by (model, cell) (max_over_time(baton_workers[1h]))\n"
            "  unless max by (model, cell) (baton_workers)\n"
            ")\n"
            f'and on () max(up{{job="{JOB}"}}) == 1\n'
            "or\n"
            f'max by (job) (up{{job="{JOB}"}}) == 1 unless on () max_over_time(baton_workers[1h])',
            for_="1m",
            severity=Severity.PAGE,
            summary="The Scheduler of {{ $labels.model }} {{ $labels.cell }} is away",
            description="The page of metrics has had no figures of the Scheduler for a minute. Ingress replicas place "
            "by themselves, without predictions.",
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
        Alert(
            name="BatonQualityDrop",
            condition=f"min by (model, worker, path) (baton_quality_probe_score) < {MIN_SCORE}",
            for_="5m",
            severity=Severity.PAGE,
            summary="Answers of {{ $labels.worker }} on path {{ $labels.path }} are only "
            "{{ $value | humanizePercentage }} right",
            description="The quality probe's answers have differed from the reference by more than 5 % for five "
            "minutes.",
        ),
    ),
)

"""Alerts about what is recorded, and about the metrics themselves. Pure."""

from cluster.observability.alerts.alert import GAP, JOB, Alert, AlertGroup, Severity, happened, latest

MAX_LAG_S = 300
"""Age of a record of usage that is not in the ledger, in seconds, above which the ledger hangs."""
MIN_PAGES = 0.5
"""Share of the scrapes of ten minutes that must have given a page. Higher fires for a few slow pages; lower lets an
address that hardly answers blind the other alerts.
"""
MAX_LOOP_LAG_P99_S = 0.25
"""Lag of an event loop in seconds, reached in a hundredth of the time, above which clients notice it: several times the
TPOT objective of interactive requests. A bound of the histogram's buckets is exact, other values are interpolated.
Higher notices a process that is overloaded only as its requests are late already; lower fires on machines whose CPUs
are shared with engines.
"""
CERTIFICATE_DAYS = 7
"""Days before its end from which on a certificate is to be renewed."""

RECORDS = AlertGroup(
    name="baton-records",
    alerts=(
        Alert(
            name="BatonLedgerLag",
            condition=f"max by (model, replica) ({latest('baton_ledger_lag_seconds')}) > {MAX_LAG_S}",
            for_="1m",
            severity=Severity.TICKET,
            summary="Usage of {{ $labels.model }} reaches the ledger {{ $value | humanizeDuration }} late",
            description="The oldest record of usage of an ingress replica has waited for the ledger for more than five "
            "minutes. It is kept in the spool meanwhile.",
        ),
        Alert(
            name="BatonUsageRecordsLost",
            condition=happened("baton_usage_records_total", "model, result", 'result=~"lost|refused"'),
            severity=Severity.PAGE,
            summary="Records of usage of {{ $labels.model }} are {{ $labels.result }}",
            description="Usage of clients is missing in the ledger, since some time in the last ten minutes.",
        ),
        Alert(
            name="BatonSettlementsLost",
            condition=happened("baton_limit_settlements_lost_total", "model"),
            severity=Severity.TICKET,
            summary="Limits of {{ $labels.model }} count too much",
            description="Settlements of limits were given up in the last ten minutes: what requests had reserved stays "
            "taken.",
        ),
        Alert(
            name="BatonSafetyEventsLost",
            condition=happened("baton_safety_events_total", "model", 'result="lost"'),
            severity=Severity.PAGE,
            summary="Safety events of {{ $labels.model }} are lost",
            description="Decisions of the screening are missing in the audit log, since some time in the last ten "
            "minutes.",
        ),
    ),
)

METRICS = AlertGroup(
    name="baton-metrics",
    alerts=(
        Alert(
            name="BatonScrapeDown",
            condition=f'max by (job, instance) (up{{job="{JOB}"}}) == 0\n'
            f'or max by (job, instance) (avg_over_time(up{{job="{JOB}"}}[10m])) < {MIN_PAGES}\n'
            f'or absent(up{{job="{JOB}"}})',
            for_="1m",
            severity=Severity.PAGE,
            summary="Baton's metrics cannot be scraped",
            description="Prometheus has had no page of the admin port for a minute, or fewer than half of the pages of "
            "ten minutes. The other alerts see little or nothing meanwhile.",
        ),
        Alert(
            name="BatonReplicaWithoutMetrics",
            condition=f"max by (model, deployment) (max_over_time(baton_scrape_missing[{GAP}])) > 0",
            for_="5m",
            severity=Severity.TICKET,
            summary="{{ $value }} replicas of {{ $labels.deployment }} give no metrics",
            description="For five minutes, replicas have missed a scrape in each minute. What they count is missing "
            "in all figures.",
        ),
        Alert(
            name="BatonEventLoopLag",
            condition="histogram_quantile(0.99, sum by (model, deployment, replica, le) "
            f"(rate(baton_event_loop_lag_seconds_bucket[5m]))) > {MAX_LOOP_LAG_P99_S}",
            for_="5m",
            severity=Severity.TICKET,
            summary="The event loop of {{ $labels.replica }} ({{ $labels.deployment }}) is up to "
            "{{ $value | humanizeDuration }} late",
            description=f"In a hundredth of the time, for five minutes, what came to this process waited for more than "
            f"{MAX_LOOP_LAG_P99_S} s before the process looked at it.",
        ),
        Alert(
            name="BatonCertificateEnds",
            condition=f"min by (model, deployment) ({latest('baton_certificate_expires_seconds')}) - time() "
            f"< {CERTIFICATE_DAYS} * 86400",
            for_="5m",
            severity=Severity.TICKET,
            summary="A certificate of {{ $labels.deployment }} ends in {{ $value | humanizeDuration }}",
            description="A certificate that processes of Baton use for each other ends within a week.",
        ),
    ),
)

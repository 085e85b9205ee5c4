"""Panels of what stands around the engines: tenants, the ledger, safety, the edge, processes. Pure."""

from cluster.observability.panels.panel import MODEL, Curve, Panel, Subject, Unit, latest, quantile, rate, total

TENANTS = Subject(
    title="Tenants and the ledger",
    panels=(
        Panel(
            title="Lag of the ledger",
            unit=Unit.SECONDS,
            curves=(Curve(latest("baton_ledger_lag_seconds", "replica", MODEL), "{{replica}}"),),
            description="Age of the oldest record of usage that is not in the ledger.",
            bad_above=300.0,
            alerts=("BatonLedgerLag",),
        ),
        Panel(
            title="Records of usage",
            unit=Unit.PER_SECOND,
            curves=(
                Curve(rate("baton_usage_records_total", "result"), "{{result}}"),
                Curve(total("baton_usage_records_waiting", "model"), "waiting"),
            ),
            description="Records per second by what became of them, and the number that waits.",
            alerts=("BatonUsageRecordsLost", "BatonLedgerLag"),
        ),
        Panel(
            title="Decisions of limits",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_limit_decisions_total", "decision, counted"), "{{decision}} {{counted}}"),),
            description="Requests that limits have granted or denied, and where they were counted.",
        ),
        Panel(
            title="Settlements of limits",
            unit=Unit.COUNT,
            curves=(
                Curve(total("baton_limit_settlements_waiting", "model"), "waiting"),
                Curve(rate("baton_limit_settlements_lost_total", "model"), "lost per s"),
            ),
            description="Requests whose actual use Redis has not taken yet, and settlements that were given up.",
            alerts=("BatonSettlementsLost",),
        ),
    ),
)

SAFETY = Subject(
    title="Safety",
    panels=(
        Panel(
            title="Decisions of the screening",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_safety_decisions_total", "direction, action"), "{{direction}} {{action}}"),),
            description="Screened texts per second, by direction and action. Empty without `safety.folder`.",
        ),
        Panel(
            title="Texts that a stage has not scanned",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_safety_stage_failures_total", "stage"), "{{stage}}"),),
            description="Texts per second that a stage should have scanned and has not.",
        ),
        Panel(
            title="Events of the audit log",
            unit=Unit.PER_SECOND,
            curves=(
                Curve(rate("baton_safety_events_total", "result"), "{{result}}"),
                Curve(total("baton_safety_events_waiting", "model"), "waiting"),
            ),
            description="Safety events per second by what became of them, and the number that waits for PostgreSQL.",
            alerts=("BatonSafetyEventsLost",),
        ),
        Panel(
            title="Constraints",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_constraints_total", "result"), "{{result}}"),),
            description="Schemas, regular expressions and grammars of requests, by the result of their trial.",
        ),
    ),
)

PROCESSES = Subject(
    title="Processes and network",
    panels=(
        Panel(
            title="Replicas without metrics",
            unit=Unit.COUNT,
            curves=(
                Curve(total("baton_scrape_missing", "deployment", 'job=~".+"'), "{{deployment}}"),
                Curve('1 - max by (instance) (up{job="baton"})', "no page from {{instance}}"),
            ),
            description="Replicas that did not answer the last scrape in time, and addresses that gave no page at all.",
            bad_above=1.0,
            alerts=("BatonReplicaWithoutMetrics", "BatonScrapeDown"),
        ),
        Panel(
            title="Refused at the edge",
            unit=Unit.PER_SECOND,
            curves=(
                Curve(rate("baton_http_refusals_total", "code"), "{{code}}"),
                Curve(rate("baton_admin_refusals_total", "credential"), "admin port: {{credential}}"),
            ),
            description="Requests that were refused before a route, by code, and on the admin port by credential.",
        ),
        Panel(
            title="Strangers",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_strangers_total", "socket, reason"), "{{socket}} {{reason}}"),),
            description="Connections and messages that were dropped because their sender is not of the cluster.",
        ),
        Panel(
            title="Lag of event loops, p99",
            unit=Unit.SECONDS,
            curves=(
                Curve(
                    f"max by (deployment) ({quantile(0.99, 'baton_event_loop_lag_seconds', 'deployment, replica')})",
                    "{{deployment}}",
                ),
            ),
            description="Seconds for which what comes to a process waits until it looks, of the worst replica.",
            bad_above=0.25,
            alerts=("BatonEventLoopLag",),
        ),
        Panel(
            title="Time until a certificate ends",
            unit=Unit.SECONDS,
            curves=(
                Curve(
                    'min by (deployment) (baton_certificate_expires_seconds{model=~"$model"}) - time()',
                    "{{deployment}}",
                ),
            ),
            description="Seconds until the first certificate of a deployment ends. Empty without `network.tls`.",
            bad_below=7 * 86400.0,
            alerts=("BatonCertificateEnds",),
        ),
    ),
)

"""Panels of handoffs, leases and links, and of the quality of answers. Pure."""

from cluster.observability.panels.panel import (
    CELL,
    Curve,
    Panel,
    Subject,
    Unit,
    latest,
    quantile,
    quantiles,
    rate,
    total,
)

HANDOFFS = Subject(
    title="Handoffs",
    panels=(
        Panel(
            title="Time of a handoff",
            unit=Unit.SECONDS,
            curves=quantiles("baton_handoff_seconds", "part", CELL),
            description="`redeem`: until the prefill worker's promise. `first_token`: from there to the first token.",
        ),
        Panel(
            title="KV bytes handed over",
            unit=Unit.BYTES_PER_SECOND,
            curves=(Curve(rate("baton_transfer_bytes_total", "cell", CELL), "{{cell}}"),),
            description="Bytes of KV blocks per second that decode workers have pulled.",
        ),
        Panel(
            title="Failed handoffs",
            unit=Unit.PER_SECOND,
            curves=(
                Curve(rate("baton_transfer_failures_total", "reason", CELL), "{{reason}}"),
                Curve(rate("baton_pulls_total", "outcome", f'{CELL},outcome!="redeemed"'), "pull {{outcome}}"),
            ),
            description="Transfers that failed, by reason, and handoffs that were not pulled.",
            bad_above=0.0,
            alerts=("BatonTransfersFailing",),
        ),
        Panel(
            title="Open leases",
            unit=Unit.COUNT,
            curves=(Curve(total("baton_leases_open", "state", CELL), "{{state}}"),),
            description="Leases whose KV blocks prefill workers keep.",
            alerts=("BatonLeasesExpiring",),
        ),
        Panel(
            title="Ended leases",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_leases_ended_total", "how", CELL), "{{how}}"),),
            description="Leases per second by how they ended. An expired one kept KV blocks that nobody fetched.",
            alerts=("BatonLeasesExpiring",),
        ),
        Panel(
            title="Release of KV blocks, p99",
            unit=Unit.SECONDS,
            curves=(Curve(quantile(0.99, "baton_lease_release_seconds", "", CELL), "p99"),),
            description="Seconds from the moment when a lease's blocks are not wanted any more until they are free.",
        ),
        Panel(
            title="Proved links of decode workers",
            unit=Unit.COUNT,
            curves=(Curve(latest("baton_links", "decode"), "{{decode}}"),),
            description="Prefill workers from which a handoff has worked. 0 for a worker that gets no handoffs.",
        ),
        Panel(
            title="Latency of links",
            unit=Unit.SECONDS,
            curves=(Curve(latest("baton_link_latency_seconds", "prefill, decode"), "{{prefill}} to {{decode}}"),),
            description="Seconds of an empty handoff, as measured over one link of its class.",
        ),
        Panel(
            title="Bandwidth of links",
            unit=Unit.BYTES_PER_SECOND,
            curves=(Curve(latest("baton_link_bytes_per_second", "prefill, decode"), "{{prefill}} to {{decode}}"),),
            description="Bytes of KV blocks per second, as measured over one link of its class.",
        ),
    ),
)

QUALITY = Subject(
    title="Quality of answers",
    panels=(
        Panel(
            title="Score of the quality probe",
            unit=Unit.SHARE,
            curves=(
                Curve(latest("baton_quality_probe_score", "worker, path", 'model=~"$model"'), "{{worker}} {{path}}"),
            ),
            description="Share of the probe's answers that are as the reference, by worker and path.",
            bad_below=0.8,
            alerts=("BatonQualityDrop", "BatonQualityDoubt"),
        ),
        Panel(
            title="Quality probes",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_quality_probes_total", "path, result"), "{{path}} {{result}}"),),
            description="Probes per second, by path and result.",
            alerts=("BatonQualityDrop",),
        ),
        Panel(
            title="Reference and quarantine",
            unit=Unit.COUNT,
            curves=(
                Curve(latest("baton_quality_reference_usable", "origin", 'model=~"$model"'), "usable: {{origin}}"),
                Curve(latest("baton_quality_quarantined_workers", "model", 'model=~"$model"'), "in quarantine"),
            ),
            description="1 while the reference of the probe can judge, and workers that answer wrongly.",
            alerts=("BatonQualityUnchecked", "BatonQualityQuarantine"),
        ),
        Panel(
            title="Verified handoffs",
            unit=Unit.PER_SECOND,
            curves=(
                Curve(rate("baton_verifications_total", "result"), "{{result}}"),
                Curve(rate("baton_handoff_convictions_total", "result"), "convicted: {{result}}"),
            ),
            description="Handoffs that were checked against another engine. `agrees` and `cleared` are good.",
            alerts=("BatonQualityDrop",),
        ),
        Panel(
            title="Tolerance of the verification",
            unit=Unit.RATIO,
            curves=(Curve(latest("baton_handoff_tolerance_nats", "prefill, decode"), "{{prefill}} to {{decode}}"),),
            description="Largest distance of two engines, in nats, that counts as rounding.",
        ),
    ),
)

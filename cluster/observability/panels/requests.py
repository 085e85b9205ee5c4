"""Panels of requests: goodput, latency, outcomes. Pure."""

from cluster.observability.panels.panel import (
    Curve,
    Panel,
    Subject,
    Unit,
    quantile,
    quantiles,
    rate,
    share,
)

GOODPUT = Subject(
    title="Goodput",
    panels=(
        Panel(
            title="Requests within their SLO",
            unit=Unit.SHARE,
            curves=(
                Curve(
                    share(
                        rate("baton_goodput_requests_total", "slo_class", 'model=~"$model",result="good"'),
                        rate("baton_goodput_requests_total", "slo_class"),
                    ),
                    "{{slo_class}}",
                ),
            ),
            description="Share of the closed requests that finished within TTFT and TPOT objective, by SLO class.",
            bad_below=0.85,
            alerts=("BatonGoodputLow", "BatonClassGoodputLow", "BatonNothingGood", "BatonClassNothingGood"),
        ),
        Panel(
            title="Goodput",
            unit=Unit.PER_SECOND,
            curves=(
                Curve(
                    rate("baton_goodput_requests_total", "slo_class", 'model=~"$model",result="good"'), "{{slo_class}}"
                ),
            ),
            description="Requests per second that finished within both objectives, by SLO class.",
        ),
        Panel(
            title="Why requests missed their SLO",
            unit=Unit.PER_SECOND,
            curves=(
                Curve(rate("baton_goodput_requests_total", "result", 'model=~"$model",result!="good"'), "{{result}}"),
            ),
            description="Requests per second that do not count as goodput, by the reason.",
            alerts=("BatonGoodputLow",),
        ),
        Panel(
            title="Closed requests",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_requests_total", "outcome"), "{{outcome}}"),),
            description="Requests per second by outcome. `aborted`: the client left, or read too slowly.",
            alerts=("BatonAbortsHigh", "BatonMostAborted"),
        ),
        Panel(
            title="Output tokens",
            unit=Unit.TOKENS_PER_SECOND,
            curves=(Curve(rate("baton_output_tokens_total", "model"), "{{model}}"),),
            description="Tokens per second that clients were given, counted as their requests are closed.",
        ),
        Panel(
            title="Requests by path",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_requests_total", "path"), "{{path}}"),),
            description="`P->D` is handed over, `D` and `P` run whole on one worker, `none` was never placed.",
        ),
    ),
)

LATENCY = Subject(
    title="Latency",
    panels=(
        Panel(
            title="TTFT",
            unit=Unit.SECONDS,
            curves=quantiles("baton_time_to_first_token_seconds", "slo_class"),
            description="Seconds from the arrival of a request to its first token, by SLO class.",
            bad_above=1.0,
            alerts=("BatonTtftHigh",),
        ),
        Panel(
            title="TPOT",
            unit=Unit.SECONDS,
            curves=quantiles("baton_request_time_per_output_token_seconds", "slo_class"),
            description="Mean seconds between the tokens of a request after the first one, by SLO class.",
        ),
        Panel(
            title="Inter-token latency",
            unit=Unit.SECONDS,
            curves=quantiles("baton_inter_token_latency_seconds", "slo_class"),
            description="Seconds between two tokens of an answer, by SLO class. A stall of one step shows here alone.",
        ),
        Panel(
            title="End-to-end latency",
            unit=Unit.SECONDS,
            curves=quantiles("baton_request_seconds", "slo_class"),
            description="Seconds from the arrival of a request to its last token, by SLO class.",
        ),
        Panel(
            title="Wait for a placement",
            unit=Unit.SECONDS,
            curves=quantiles("baton_request_queue_seconds", "slo_class"),
            description="Seconds that requests waited for the Scheduler to place them, by SLO class.",
        ),
        Panel(
            title="TTFT by path, p95",
            unit=Unit.SECONDS,
            curves=(Curve(quantile(0.95, "baton_time_to_first_token_seconds", "path"), "{{path}}"),),
            description="Seconds to the first token by path: shows whether handed-over requests are the late ones.",
        ),
        Panel(
            title="TTFT that is not measured",
            unit=Unit.SHARE,
            curves=(
                Curve(
                    share(
                        rate("baton_time_to_first_token_unmeasured_seconds_sum", "path"),
                        rate("baton_time_to_first_token_seconds_sum", "path"),
                    ),
                    "{{path}}",
                ),
            ),
            description="Share of the TTFT that is left between the measured stages of requests, by path.",
        ),
    ),
)

"""Panels of the Scheduler and of the sizes of the pools. Pure."""

from cluster.observability.panels.panel import (
    CELL,
    MODEL,
    Curve,
    Panel,
    Subject,
    Unit,
    latest,
    quantile,
    quantiles,
    rate,
    share,
    total,
)

SCHEDULER = Subject(
    title="Scheduler",
    panels=(
        Panel(
            title="Requests that wait for a placement",
            unit=Unit.COUNT,
            curves=(Curve(latest("baton_queue_requests", "cell, slo_class"), "{{cell}} {{slo_class}}"),),
            description="Requests in the Scheduler's queue, by SLO class.",
            alerts=("BatonGoodputLow",),
        ),
        Panel(
            title="Answers of the Scheduler",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_placements_total", "answer", CELL), "{{answer}}"),),
            description="`fallback`: what the Scheduler knows is stale. `overload`: refused because of the load.",
            alerts=("BatonSchedulerAway",),
        ),
        Panel(
            title="Refused requests",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_rejections_total", "slo_class, reason"), "{{slo_class}} {{reason}}"),),
            description="Requests per second that were refused for want of a worker, by SLO class and reason.",
            alerts=("BatonGoodputLow",),
        ),
        Panel(
            title="Time of a placement",
            unit=Unit.SECONDS,
            curves=(
                Curve(quantile(0.5, "baton_placement_seconds", "", CELL), "p50"),
                Curve(quantile(0.99, "baton_placement_seconds", "", CELL), "p99"),
            ),
            description="Seconds until the Scheduler answered, the time in its queue included.",
        ),
        Panel(
            title="Error of predictions",
            unit=Unit.SHARE,
            curves=(
                Curve(latest("baton_step_prediction_error", "cell, kind, step"), "{{kind}} {{step}}"),
                Curve(latest("baton_request_prediction_error", "cell, path, of"), "{{path}} {{of}}"),
            ),
            description="Moving average of the relative error of predicted steps, TTFT and TPOT.",
        ),
        Panel(
            title="Actual over predicted, median",
            unit=Unit.RATIO,
            curves=(Curve(quantile(0.5, "baton_prediction_ratio", "path, of"), "{{path}} {{of}}"),),
            description="1 is a right prediction. Above 1, requests take longer than the Scheduler thought.",
        ),
        Panel(
            title="Pauses",
            unit=Unit.PER_SECOND,
            curves=(
                Curve(rate("baton_pauses_asked_total", "slo_class", CELL), "asked {{slo_class}}"),
                Curve(rate("baton_pauses_total", "slo_class"), "paused {{slo_class}}"),
            ),
            description="Requests per second that gave their room to a higher class.",
        ),
        Panel(
            title="Placements per request",
            unit=Unit.RATIO,
            curves=(
                Curve(
                    share(
                        rate("baton_attempts_total", "model"),
                        rate("baton_requests_total", "model", 'model=~"$model",path!="none"'),
                    ),
                    "{{model}}",
                ),
            ),
            description="Above 1 where workers fail, or where requests pause.",
        ),
        Panel(
            title="Prefix index",
            unit=Unit.COUNT,
            curves=(
                Curve(latest("baton_prefix_index_blocks", "cell"), "{{cell}} blocks"),
                Curve(latest("baton_prefix_index_exact_workers", "cell"), "{{cell}} exact workers"),
            ),
            description="KV blocks that the Scheduler knows, and workers whose caches it knows exactly.",
            alerts=("BatonPrefixHitsLow",),
        ),
        Panel(
            title="Workers that an ingress cannot reach",
            unit=Unit.SECONDS,
            curves=(Curve(latest("baton_hold_seconds", "ingress, worker"), "{{ingress}} {{worker}}"),),
            description="Length of each hold: the ingress gets no placement on the worker meanwhile.",
        ),
        Panel(
            title="Cells",
            unit=Unit.COUNT,
            curves=(
                Curve(total("baton_cell_requests", "cell", CELL), "open in {{cell}}"),
                Curve(rate("baton_cell_left_requests_total", "cell, reason", CELL), "left {{cell}}: {{reason}} per s"),
            ),
            description="Open requests of each cell, and requests that left it. Empty with one cell.",
        ),
    ),
)

POOLS = Subject(
    title="Pools",
    panels=(
        Panel(
            title="Workers",
            unit=Unit.COUNT,
            curves=(
                Curve(latest("baton_workers", "cell, pool"), "{{cell}} {{pool}} live"),
                Curve(latest("baton_pool_wanted", "cell, pool"), "{{cell}} {{pool}} wanted"),
                Curve(latest("baton_pool_configured", "cell, pool"), "{{cell}} {{pool}} configured"),
                Curve(latest("baton_pool_target", "cell, pool"), "{{cell}} {{pool}} asked of Serve"),
                Curve(latest("baton_retiring_workers", "cell"), "{{cell}} retiring"),
            ),
            description="Workers that report, and those that the expected load needs where the pools size themselves.",
            alerts=("BatonPoolEmpty", "BatonPoolSmall", "BatonWorkerSilent"),
        ),
        Panel(
            title="Lost workers",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_workers_lost_total", "cell, pool", CELL), "{{cell}} {{pool}}"),),
            description="Workers per second that have vanished without having said that they leave.",
            bad_above=0.0,
            alerts=("BatonWorkerSilent",),
        ),
        Panel(
            title="Expected requests",
            unit=Unit.PER_SECOND,
            curves=(Curve(latest("baton_expected_requests_per_second", "cell"), "{{cell}}"),),
            description="Forecast for the moment when a worker that is ordered now is ready.",
        ),
        Panel(
            title="Correction of the model of the load",
            unit=Unit.RATIO,
            curves=(Curve(latest("baton_scaling_correction", "cell"), "{{cell}}"),),
            description="Workers that turned out to be needed for each one that the latency models ask for.",
        ),
        Panel(
            title="Age of the last report",
            unit=Unit.SECONDS,
            curves=(Curve(latest("baton_worker_report_age_seconds", "pool, worker"), "{{pool}} {{worker}}"),),
            description="Seconds since the Scheduler heard from a worker. Workers report four times a second.",
            bad_above=30.0,
            alerts=("BatonWorkerSilent",),
        ),
        Panel(
            title="KV usage",
            unit=Unit.SHARE,
            curves=(Curve(latest("baton_worker_kv_usage_ratio", "pool, worker"), "{{pool}} {{worker}}"),),
            description="Share of a worker's KV blocks that running requests use. Cached blocks do not count.",
            bad_above=0.95,
            alerts=("BatonKvUsageHigh",),
        ),
        Panel(
            title="Running and waiting requests",
            unit=Unit.COUNT,
            curves=(
                Curve(latest("baton_worker_running_requests", "pool, worker"), "{{pool}} {{worker}} running"),
                Curve(latest("baton_worker_waiting_requests", "pool, worker"), "{{pool}} {{worker}} waiting"),
                Curve(latest("baton_placed_requests", "pool, worker"), "{{pool}} {{worker}} placed"),
            ),
            description="Requests that an engine runs, that wait in it, and that are charged to the worker.",
        ),
    ),
)

ENGINES = Subject(
    title="Engines",
    panels=(
        Panel(
            title="Length of steps",
            unit=Unit.SECONDS,
            curves=tuple(
                Curve(quantile(q, "baton_engine_step_seconds", "pool, step", CELL), f"{{{{pool}}}} {{{{step}}}} {name}")
                for q, name in ((0.5, "p50"), (0.99, "p99"))
            ),
            description="Seconds of an engine step, for steps that compute prompts and steps that only decode.",
        ),
        Panel(
            title="Tokens of a step",
            unit=Unit.COUNT,
            curves=quantiles("baton_engine_step_tokens", "pool", CELL),
            description="Tokens that one engine step computes.",
        ),
        Panel(
            title="Preemptions",
            unit=Unit.PER_SECOND,
            curves=(Curve(rate("baton_engine_preemptions_total", "pool", CELL), "{{pool}}"),),
            description="Requests that an engine threw out of its memory, and computes again.",
            alerts=("BatonKvUsageHigh",),
        ),
        Panel(
            title="Prefix hit rate",
            unit=Unit.SHARE,
            curves=(
                Curve(
                    share(
                        rate("baton_request_prompt_tokens_total", "model", f'{MODEL},source=~"local|offloaded"'),
                        rate("baton_request_prompt_tokens_total", "model", f'{MODEL},source!="pulled"'),
                    ),
                    "{{model}}",
                ),
            ),
            description="Share of hits among the prompt tokens that engines computed or found in a cache.",
            bad_below=0.3,
            alerts=("BatonPrefixHitsLow",),
        ),
        Panel(
            title="Prompt tokens by source",
            unit=Unit.TOKENS_PER_SECOND,
            curves=(Curve(rate("baton_prompt_tokens_total", "pool, source", CELL), "{{pool}} {{source}}"),),
            description="`computed`, `local` (the engine's cache), `pulled` (a handoff), `offloaded` (DRAM or disk).",
        ),
        Panel(
            title="Generated tokens",
            unit=Unit.TOKENS_PER_SECOND,
            curves=(
                Curve("sum by (deployment) (rate(vllm:generation_tokens_total[$__rate_interval]))", "{{deployment}}"),
            ),
            description="Tokens per second of all engines, as vLLM counts them.",
        ),
        Panel(
            title="Tokens for no client",
            unit=Unit.TOKENS_PER_SECOND,
            curves=(
                Curve(rate("baton_unread_tokens_total", "model"), "unread"),
                Curve(rate("baton_unclaimed_tokens_total", "why", CELL), "{{why}}"),
            ),
            description="Tokens of engines for sessions that had ended, for warm-ups and for proofs of links.",
            alerts=("BatonAbortsHigh",),
        ),
    ),
)

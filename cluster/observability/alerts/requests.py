"""Alerts that clients feel: goodput, TTFT, aborted requests, prefix hits. Pure."""

from cluster.messages.ids import SloClass
from cluster.observability.alerts.alert import MIN_REQUESTS, Alert, AlertGroup, Recording, Severity, increase

MIN_GOODPUT = 0.85
"""Share of requests within their SLO below which goodput is low."""
MAX_TTFT_P95_S = {SloClass.INTERACTIVE: 1.0, SloClass.STANDARD: 1.0, SloClass.BATCH: 30.0}
"""TTFT in seconds that 95 % of the requests of a class should stay below. Set them to what users of the service notice:
long prompts need more. A bound of the histogram's buckets is exact, other values are interpolated. Not above the last
bound, 60 s: no quantile is larger.
"""
MAX_ABORTED = 0.1
"""Share of closed requests whose clients left, above which something makes them leave."""
MOST_ABORTED = 0.5
"""Share of closed requests whose clients left, above which the service seems to hang."""
MIN_FAILED = 5
"""Requests without success in half an hour, with no good one beside them, from which on a service with little traffic
counts as broken. Lower fires for a few unlucky requests; higher notices later.
"""
MIN_PREFIX_HITS = 0.3
"""Share of hits among the prompt tokens that engines computed or found in a cache, below which caches seem lost."""

GOOD = "model_class:baton_goodput_requests_good:increase5m"
COUNTED = "model_class:baton_goodput_requests:increase5m"
TTFT_P95 = "model_class:baton_time_to_first_token_seconds:p95_5m"
CLOSED = "model:baton_requests:increase5m"
COMPUTED = "model:baton_request_prompt_tokens_computed:increase5m"
HITS = "model:baton_request_prompt_tokens_hit:increase5m"


def _late() -> str:
    """The TTFT of the classes whose TTFT is too high."""
    return "\n  or ".join(f'{TTFT_P95}{{slo_class="{name}"}} > {most_s:g}' for name, most_s in MAX_TTFT_P95_S.items())


def _aborted_above(most: float) -> str:
    """True where the clients of more than this share of the closed requests have left."""
    aborted = increase("baton_requests_total", "model", "5m", 'outcome="aborted"')
    return f"{aborted} / {CLOSED} > {most}\nand {CLOSED} >= {MIN_REQUESTS}"


def _nothing_good(by: str) -> str:
    """True where requests ended in half an hour, and none of them was good. A good one may be the first of its series,
    which `increase` does not see.
    """
    good = 'baton_goodput_requests_total{result="good"}'
    missed = increase("baton_goodput_requests_total", by, "30m", 'result!="good"')
    return (
        f"{missed} > {MIN_FAILED - 0.5}\n"
        f"unless sum by ({by}) (increase({good}[30m])) > 0\n"
        f"unless count by ({by}) ({good} unless max_over_time({good}[30m] offset 30m))"
    )


GOODPUT = AlertGroup(
    name="baton-goodput",
    recordings=(
        Recording(name=COUNTED, query=increase("baton_goodput_requests_total", "model, slo_class", "5m")),
        Recording(
            name=GOOD,
            # 0 where nothing is good: there is no series then
            query=increase("baton_goodput_requests_total", "model, slo_class", "5m", 'result="good"')
            + f"\nor {COUNTED} * 0",
        ),
    ),
    alerts=(
        Alert(
            name="BatonGoodputLow",
            condition=f"sum by (model) ({GOOD}) / sum by (model) ({COUNTED}) < {MIN_GOODPUT}\n"
            f"and sum by (model) ({COUNTED}) >= {MIN_REQUESTS}",
            for_="5m",
            severity=Severity.PAGE,
            summary="Only {{ $value | humanizePercentage }} of the requests to {{ $labels.model }} meet their SLO",
            description="Less than 85 % of the requests of the last five minutes finished within their TTFT and TPOT "
            "objectives, for five minutes. Refused and failed requests count as missed.",
        ),
        Alert(
            name="BatonClassGoodputLow",
            condition=f"{GOOD} / {COUNTED} < {MIN_GOODPUT}\nand {COUNTED} >= {MIN_REQUESTS}",
            for_="5m",
            severity=Severity.TICKET,
            summary="Only {{ $value | humanizePercentage }} of the {{ $labels.slo_class }} requests to "
            "{{ $labels.model }} meet their SLO",
            description="Less than 85 % of the requests of one SLO class finished within their objectives, for five "
            "minutes. Other classes may be well.",
        ),
        Alert(
            name="BatonNothingGood",
            condition=_nothing_good("model"),
            severity=Severity.PAGE,
            summary="No request to {{ $labels.model }} meets its SLO",
            description=f"In the last half hour {MIN_FAILED} or more requests were refused, failed or late, and none "
            "was good. This one also watches a service with little traffic.",
        ),
        Alert(
            name="BatonClassNothingGood",
            condition=_nothing_good("model, slo_class"),
            severity=Severity.TICKET,
            summary="No {{ $labels.slo_class }} request to {{ $labels.model }} meets its SLO",
            description=f"In the last half hour {MIN_FAILED} or more requests of one SLO class were refused, failed or "
            "late, and none was good.",
        ),
    ),
)

TTFT = AlertGroup(
    name="baton-ttft",
    recordings=(
        Recording(
            name=TTFT_P95,
            query="histogram_quantile(0.95, sum by (model, slo_class, le) "
            "(rate(baton_time_to_first_token_seconds_bucket[5m])))",
        ),
    ),
    alerts=(
        Alert(
            name="BatonTtftHigh",
            condition=f"(\n  {_late()}\n)\n"
            "and "
            + increase("baton_time_to_first_token_seconds_count", "model, slo_class", "5m")
            + f" >= {MIN_REQUESTS}",
            for_="5m",
            severity=Severity.PAGE,
            summary="First tokens of {{ $labels.slo_class }} requests to {{ $labels.model }} take up to "
            "{{ $value | humanizeDuration }}",
            description="The p95 of TTFT has been above the limit of its SLO class for five minutes ("
            + ", ".join(f"{name} {most_s:g} s" for name, most_s in MAX_TTFT_P95_S.items())
            + ").",
        ),
    ),
)

REQUESTS = AlertGroup(
    name="baton-requests",
    recordings=(
        Recording(name=CLOSED, query=increase("baton_requests_total", "model", "5m")),
        Recording(
            name=COMPUTED, query=increase("baton_request_prompt_tokens_total", "model", "5m", 'source="computed"')
        ),
        Recording(
            name=HITS,
            # 0 where nothing is a hit: there is no series then. Pulled tokens were computed or found by another worker
            query=increase("baton_request_prompt_tokens_total", "model", "5m", 'source=~"local|offloaded"')
            + f"\nor {COMPUTED} * 0",
        ),
    ),
    alerts=(
        Alert(
            name="BatonAbortsHigh",
            condition=_aborted_above(MAX_ABORTED),
            for_="10m",
            severity=Severity.TICKET,
            summary="The clients of {{ $value | humanizePercentage }} of the requests to {{ $labels.model }} leave",
            description="More than 10 % of the closed requests were ended by their clients, for ten minutes.",
        ),
        Alert(
            name="BatonMostAborted",
            condition=_aborted_above(MOST_ABORTED),
            for_="10m",
            severity=Severity.PAGE,
            summary="The clients of {{ $value | humanizePercentage }} of the requests to {{ $labels.model }} leave",
            description="More than half of the closed requests were ended by their clients, for ten minutes.",
        ),
        Alert(
            name="BatonPrefixHitsLow",
            condition=f"{HITS} / ({HITS} + {COMPUTED} > 0) < {MIN_PREFIX_HITS}\nand {CLOSED} >= {MIN_REQUESTS}",
            for_="15m",
            severity=Severity.TICKET,
            summary="Only {{ $value | humanizePercentage }} of the prompt tokens of {{ $labels.model }} are hits",
            description="Less than 30 % of the prompt tokens that engines computed or found in a cache were found, for "
            "fifteen minutes. Where no prompts share a prefix this is normal.",
        ),
    ),
)

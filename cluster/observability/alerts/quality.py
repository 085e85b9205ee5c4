"""Alerts about the quality of answers, as the quality probe sees it. Pure."""

from cluster.observability.alerts.alert import Alert, AlertGroup, Severity, increase, latest

MIN_SCORE = 0.8
"""Score of the quality probe that two wrong answers of the last eight fall below, and one does not. Higher pages for
one odd answer; lower pages after more wrong answers.
"""
SEVERAL = 1.5
"""Wrong answers on a path, with a margin for the extrapolation of `increase`, above which there were two or more. A
young service has few answers, and one wrong answer of four or fewer is a score below `MIN_SCORE`, too. Higher needs
more of them; lower lets one count.
"""
SEEN_IN = "6h"
"""How long wrong answers, and a reference that is gone, are remembered. Shorter forgets them where probes are rare;
longer adds up odd answers that have nothing to do with each other.
"""
BY_PATH = "model, worker, path"
SCORE = f"min by ({BY_PATH}) ({latest('baton_quality_probe_score')})"
USABLE = "baton_quality_reference_usable"

QUALITY = AlertGroup(
    name="baton-quality",
    alerts=(
        Alert(
            name="BatonQualityDrop",
            condition=f"{SCORE} < {MIN_SCORE}\n"
            "and on (model, path) "
            + increase("baton_quality_probes_total", "model, path", SEEN_IN, 'result="differs"')
            + f" > {SEVERAL}",
            severity=Severity.PAGE,
            summary="Answers of {{ $labels.worker }} on path {{ $labels.path }} are only "
            "{{ $value | humanizePercentage }} right",
            description="Two or more of a worker's last eight answers to the quality probe differ from the reference.",
        ),
        Alert(
            name="BatonQualityQuarantine",
            condition=f"max by (model) ({latest('baton_quality_quarantined_workers')}) > 0",
            severity=Severity.PAGE,
            summary="{{ $value }} workers of {{ $labels.model }} answer wrongly",
            description="Workers have answered two different prompts of the quality probe wrongly (with one usable "
            "prompt, twice in a row), while others were right. They get no requests, or would get none if "
            "`quality_probe.quarantine` were `on`.",
        ),
        Alert(
            name="BatonQualityDoubt",
            condition=f"{SCORE} < 1",
            severity=Severity.TICKET,
            summary="{{ $labels.worker }} has answered the quality probe wrongly on path {{ $labels.path }}",
            description="One or more of a worker's last eight answers to the quality probe differ from the reference.",
        ),
        Alert(
            name="BatonQualityUnchecked",
            condition=f"max by (model) ({latest(USABLE)}) == 0\n"
            f"or (max by (model) (max_over_time({USABLE}[{SEEN_IN}]))"
            f" unless max by (model) (max_over_time({USABLE}[10m])))",
            for_="30m",
            severity=Severity.TICKET,
            summary="Nobody checks the answers of {{ $labels.model }}",
            description="For half an hour the quality probe has had no reference that can judge, or no replica has "
            "probed, though one did in the last six hours.",
        ),
    ),
)

"""Baton's choice of workers against other rules with the same admission, where prompts share long prefixes."""

from functools import cache

import pytest

from bench.matrix.search import OUR_SPLIT, OURS
from cluster.simulation.experiment import Cluster, Experiment
from cluster.simulation.results.summary import RunSummary, summary
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos

RATE = 14.5
"""Requests per second of which Baton serves some nine of ten within their SLO."""
NOISE = 0.01
"""Share of all requests by which runs that differ in little differ by chance."""


@cache
def on_documents(policy: str, step_tokens: int = 320) -> RunSummary:
    cluster = Cluster(host_tokens=1_000_000, decode_step_tokens=step_tokens)
    experiment = Experiment(generate(MIXES["documents"], 1200, 0), cluster, parse_slos("tight"))
    return summary(experiment.run(policy, OUR_SPLIT, RATE))


@pytest.mark.parametrize("rule", ["lmetric_admission_steps", "lmetric_filter_steps", "min_ttft_filter_steps"])
def test_no_other_rule_on_the_same_engines_serves_more(rule: str) -> None:
    ours, theirs = on_documents(OURS), on_documents(rule)
    assert ours.attainment >= theirs.attainment - NOISE
    assert ours.token_attainment >= theirs.token_attainment - NOISE


@pytest.mark.parametrize("step_tokens", [256, 384])
@pytest.mark.parametrize("rule", ["min_ttft_filter", "lmetric_filter"])
def test_engines_with_deadlines_and_elastic_steps_serve_more(rule: str, step_tokens: int) -> None:
    assert on_documents(OURS).attainment >= on_documents(rule, step_tokens).attainment + 0.05

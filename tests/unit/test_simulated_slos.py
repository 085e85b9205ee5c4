"""What a simulated request has to meet, by its length and class."""

import pytest

from cluster.simulate.slos import RULES, SloRule, parse_rule, parse_rules, slo_of
from cluster.simulate.workload import Arrival
from cluster.types import Slo, SloClass


def test_ttft_objective_grows_with_the_isolated_prefill():
    assert RULES["mid"].slo(0.5) == Slo(2.5, 0.05)
    assert RULES["tTTFT"].slo(0.2).ttft_s == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("text", "rule"),
    [("tight", RULES["tight"]), ("0.5+2x/0.04", SloRule(0.5, 2.0, 0.04)), ("30/0.2", SloRule(30.0, 0.0, 0.2))],
)
def test_rule_is_named_or_spelt_out(text, rule):
    assert parse_rule(text) == rule


@pytest.mark.parametrize("text", ["", "medium", "1", "1/", "1+x/2", "mid,loose", "gold=mid"])
def test_what_is_no_rule_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"0\.5\+2x/0\.04|SLO class|a class each"):
        parse_rules(text)


def test_classes_have_their_own_rules_and_the_first_one_otherwise():
    rules = parse_rules("interactive=tight,batch=30/0.2")
    assert rules[SloClass.BATCH] == SloRule(30.0, 0.0, 0.2)
    assert rules[SloClass.STANDARD] == rules[SloClass.INTERACTIVE] == RULES["tight"]
    assert set(parse_rules("loose").values()) == {RULES["loose"]}


def test_objective_of_a_request_is_that_of_its_class_and_length():
    row = Arrival(arrival_s=0, num_prompt=1000, num_output=1, slo_class=SloClass.BATCH)
    assert slo_of(parse_rules("batch=1+1x/1"), lambda n: n / 1e3)(row) == Slo(2, 1)

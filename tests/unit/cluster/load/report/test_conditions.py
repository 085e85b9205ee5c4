"""Conditions decide whether a load was good enough."""

import pytest

from cluster.load.report.conditions import FIGURES, parse_condition, unmet
from tests.unit.cluster.load.report.records import record, refused, summed

RUN = summed([*(record(number) for number in range(19)), refused(19)])


@pytest.mark.parametrize(
    "text",
    [
        "attainment>=0.95",
        "attainment == 0.95",
        "refused<=1",
        "failed==0",
        "ttft_p99_ms<=500",
        "tpot_mean_ms<51",
        "goodput>0.9",
        "refused_share<0.06",
        "e2e_max_ms<=1000",
    ],
)
def test_condition_that_holds(text: str) -> None:
    assert unmet([parse_condition(text)], RUN) == []


@pytest.mark.parametrize(
    "text", ["attainment>0.95", "attainment_low>=0.8", "refused<1", "ttft_p50_ms<499.9", "goodput>=5"]
)
def test_condition_that_does_not_hold_is_told_with_its_value(text: str) -> None:
    (line,) = unmet([parse_condition(text)], RUN)
    assert line.startswith(f"{parse_condition(text)} is not met: it is ")


def test_figure_that_does_not_exist_meets_nothing() -> None:
    assert unmet([parse_condition("ttft_p99_ms<=500"), parse_condition("cached_share<=1")], summed([refused()])) == [
        "ttft_p99_ms<=500 is not met: there is none",
        "cached_share<=1 is not met: there is none",
    ]


@pytest.mark.parametrize("text", ["", "attainment", "attainment>=", "speed>1", "attainment>=0.9 or 1", "attainment=>1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no condition"):
        parse_condition(text)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_asked_for(name: str) -> None:
    assert len(unmet([parse_condition(f"{name}<0")], RUN)) == 1

"""What a simulated request has to meet, by its length and class."""

import pytest

from cluster.messages.ids import SloClass
from cluster.messages.placement import Slo
from cluster.simulation.traffic.slos import OBJECTIVES, parse_objective, parse_slos, slo_of
from cluster.simulation.traffic.workload import Arrival
from cluster.slo import Objective


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("tight", OBJECTIVES["tight"]),
        ("0.5+2x/0.04", Objective(ttft_s=0.5, ttft_per_prefill=2.0, tpot_s=0.04)),
        ("30/0.2", Objective(ttft_s=30.0, ttft_per_prefill=0.0, tpot_s=0.2)),
    ],
)
def test_objective_is_named_or_spelt_out(text: str, objective: Objective) -> None:
    assert parse_objective(text) == objective


@pytest.mark.parametrize("text", ["", "medium", "1", "1/", "1+x/2", "1.2.3/1", "mid,loose", "gold=mid"])
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"0\.5\+2x/0\.04|SLO class|a class each|could not convert"):
        parse_slos(text)


def test_classes_have_their_own_objectives_and_the_first_one_otherwise() -> None:
    slos = parse_slos("interactive=tight,batch=30/0.2")
    assert slos.batch == parse_objective("30/0.2")
    assert slos.standard == slos.interactive == OBJECTIVES["tight"]
    assert parse_slos("loose").batch == OBJECTIVES["loose"]


def test_slo_of_a_request_is_that_of_its_class_and_length() -> None:
    row = Arrival(arrival_s=0, num_prompt=1000, num_output=1, slo_class=SloClass.BATCH)
    assert slo_of(parse_slos("standard=mid,batch=1+1x/1"), lambda num_prompt: num_prompt / 1e3)(row) == Slo(2, 1)

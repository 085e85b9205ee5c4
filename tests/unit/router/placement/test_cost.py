"""What the price of an option says about its first token, where prompts that are yet to come will overtake."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.placement import Slo
from router.load.prompt_demand import Demand
from router.placement.cost import alone
from router.placement.option import Option
from router.placement.placement_input import Others, PlacementInput
from router.placement.work import DecodePart
from router.prediction.output_lengths import LengthHistogram
from tests.unit.clusters import a_cluster, ask

URGENT: Demand = [(0.5, 0.6)]
"""Prompts that are due within half a second take 60 % of the workers' time."""


def priced(ttft_s: float, demand: Demand = [], usual_prompt_s: float = 0.5, prompt_use: float = 0.0) -> Option:  # noqa: B006
    """A prompt of 20,000 tokens, which takes some two seconds, alone on an idle worker."""
    state = a_cluster(0, 1)
    lengths = LengthHistogram()
    lengths.add(100)
    others = Others([], 1, prompt_use, 1.0, demand, 0.0, 0.0, usual_prompt_s)
    request = PlacementInput(ask("r", 20_000), Slo(ttft_s, inf), {}, lengths, 0.0, others, 0.0)
    (worker,) = state.workers.by_id.values()
    return alone(request, DecodePart(request, worker), state.models)


def test_prompt_that_others_will_overtake_is_predicted_later() -> None:
    assert priced(5.0, URGENT).ttft_s > priced(5.0).ttft_s


def test_first_token_is_less_certain_the_longer_the_prompts_are_that_overtake() -> None:
    in_time, late = 6.0, 3.0
    assert priced(in_time, URGENT, 1.0).risk > priced(in_time, URGENT, 0.1).risk
    assert priced(late, URGENT, 1.0).risk < priced(late, URGENT, 0.1).risk


def test_prompt_that_is_late_without_being_overtaken_is_late() -> None:
    alone_s = priced(60.0).ttft_s
    assert priced(alone_s / 2).risk > 0.99
    assert priced(alone_s / 2, URGENT, 60.0).risk == pytest.approx(1.0, abs=0.01)


@given(ttft_s=st.floats(0.5, 30.0), share=st.floats(0.0, 0.9), usual_prompt_s=st.floats(0.01, 5.0))
def test_being_overtaken_makes_no_first_token_surer(ttft_s: float, share: float, usual_prompt_s: float) -> None:
    overtaken = priced(ttft_s, [(0.1, share)], usual_prompt_s)
    assert 0.0 <= overtaken.risk <= 1.0
    if overtaken.ttft_s <= ttft_s:
        assert overtaken.risk >= priced(ttft_s).risk - 1e-9

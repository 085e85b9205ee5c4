"""The means of a demand are those of its requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planning.alike_requests import alike_requests
from cluster.planning.demand import demand_of
from cluster.simulation.traffic.workload import Arrival
from cluster.slo import SloConfig


def test_context_is_that_of_the_steps() -> None:
    """Steps after the first token see 11, 12, 13 and 101 tokens."""
    rows = [Arrival(arrival_s=0, num_prompt=10, num_output=4), Arrival(arrival_s=1, num_prompt=100, num_output=2)]
    demand = demand_of(rows, SloConfig())
    assert demand.context == pytest.approx((11 + 12 + 13 + 101) / 4)
    assert demand.context_at_end == pytest.approx((3 * 14 + 102) / 4)
    assert (demand.prompt, demand.output, demand.decoded, demand.longest) == (55, 3, 2, 102)
    assert demand.attended == (10 * 11 / 2 + 100 * 101 / 2) / 2


def test_blocks_of_earlier_prompts_are_hits_and_a_prompt_computes_its_last_token() -> None:
    blocks = [b"a", b"ab"]
    rows = [Arrival(arrival_s=i, num_prompt=1024, num_output=1, block_hashes=blocks) for i in range(2)]
    assert [request.num_cached for request in demand_of(rows, SloConfig()).requests] == [0, 512]


def test_no_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no requests"):
        demand_of([], SloConfig())


@given(prompt=st.integers(2000, 20_000), answer=st.integers(50, 2000), hit=st.floats(0, 0.8))
def test_requests_have_the_means_and_the_hits_that_were_asked_for(prompt: int, answer: int, hit: float) -> None:
    demand = demand_of(alike_requests(10.0, prompt, answer, hit, 500), SloConfig())
    assert demand.prompt == pytest.approx(prompt, rel=0.001)
    assert demand.output == pytest.approx(answer, rel=0.01)
    assert demand.hit_share == pytest.approx(hit, abs=0.05)


def test_hits_that_blocks_cannot_give_are_refused() -> None:
    with pytest.raises(ValueError, match=r"too short for a share of 0\.5"):
        alike_requests(10.0, 300, 100, 0.5, 500)


def test_requests_arrive_at_the_rate() -> None:
    rows = alike_requests(20.0, 100, 100, 0.0, 2000)
    assert len(rows) / rows[-1].arrival_s == pytest.approx(20.0, rel=0.1)

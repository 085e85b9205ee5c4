"""Costs, cells and links of a sizing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planning.cells import CORE_SHARE, MOST_WORKERS, REPORTS_S, cells_of, request_s
from cluster.planning.pools import Pools
from cluster.planning.simulated_cell import CELL_WORKERS, cell_of
from cluster.planning.sizing import Priced
from tests.unit.cluster.planning.plans import a_demand


@given(rate=st.floats(0.1, 1e6), num_workers=st.integers(2, 100_000))
def test_schedulers_of_cells_have_room(rate: float, num_workers: int) -> None:
    demand = a_demand()
    number = cells_of(rate, demand, num_workers).number
    load = rate / number * request_s(demand) + num_workers / number * REPORTS_S
    assert load <= CORE_SHARE * (1 + 1e-9)
    assert num_workers / number <= MOST_WORKERS


def test_short_prompts_without_kv_events_take_what_was_measured() -> None:
    """0.71 CPUs for 3,000 placements of 512 tokens a second with 1,000 workers (docs/benchmarks.md)."""
    blocks_s = 3e-6 * (2 * 512 + 1) / 16
    demand = a_demand(512, 1)
    assert 3000 * (request_s(demand) - blocks_s) + 1000 * REPORTS_S == pytest.approx(0.71, rel=0.1)


def test_costs_and_links_follow_from_devices_and_rate() -> None:
    demand = a_demand(1000, 100)
    priced = Priced(demand=demand, rate_per_s=50.0, kv_bytes_per_token=1000, price=2.0)
    sizing = priced.sizing(Pools(4, 6, 2), 0.9)
    tokens_per_hour = 3600 * 50 * (demand.prompt + demand.output)
    assert sizing.num_devices == 20
    assert sizing.costs is not None and sizing.costs.per_hour == 40.0
    assert sizing.costs.per_million_tokens == pytest.approx(40.0 / tokens_per_hour * 1e6)
    assert sizing.handoff_bytes_per_s == pytest.approx(50 * 1000 * demand.prompt)
    assert sizing.per_prefill_worker * 4 == pytest.approx(sizing.per_decode_worker * 6)
    assert sizing.goodput_per_s == 45.0


def test_no_price_gives_no_costs() -> None:
    priced = Priced(demand=a_demand(), rate_per_s=50.0, kv_bytes_per_token=1000, price=None)
    assert priced.sizing(Pools(1, 1, 1), 0.9).costs is None


@given(num_prefill=st.integers(1, 5000), num_decode=st.integers(1, 5000))
def test_cell_is_small_and_has_the_ratio_of_the_pools(num_prefill: int, num_decode: int) -> None:
    cell = cell_of(Pools(num_prefill, num_decode, 2))
    assert min(cell) >= 1 and sum(cell) <= CELL_WORKERS
    wanted, ratio = num_prefill / num_decode, cell[0] / cell[1]
    if 1 / 7 <= wanted <= 7:
        assert max(ratio / wanted, wanted / ratio) < 1.25


def test_cell_of_a_small_cluster_is_the_cluster() -> None:
    assert cell_of(Pools(2, 3, 1)) == (2, 3)

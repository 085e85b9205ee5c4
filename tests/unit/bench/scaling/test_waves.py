import pytest

from bench.scaling.waves import waved
from cluster.simulation.traffic.workload import Arrival


def arrivals(number: int, per_s: float) -> list[Arrival]:
    return [Arrival(arrival_s=index / per_s, num_prompt=10, num_output=5) for index in range(number)]


def rate(rows: list[Arrival], first_s: float, last_s: float) -> float:
    return sum(first_s <= row.arrival_s < last_s for row in rows) / (last_s - first_s)


def test_rate_is_low_at_first_and_high_at_half_time() -> None:
    rows = waved(arrivals(10_000, 10.0), period_s=1000.0, swing=0.7)
    assert rate(rows, 0, 20) == pytest.approx(3.0, rel=0.1)
    assert rate(rows, 490, 510) == pytest.approx(17.0, rel=0.05)
    assert rate(rows, 0, 1000) == pytest.approx(10.0, rel=0.01)


def test_order_and_number_of_the_requests_stay() -> None:
    rows = waved(arrivals(500, 3.0), period_s=50.0, swing=0.9)
    assert [row.arrival_s for row in rows] == sorted(row.arrival_s for row in rows)
    assert len(rows) == 500 and rows[0].arrival_s >= 0.0


def test_without_swing_nothing_moves() -> None:
    before = arrivals(50, 3.0)
    after = waved(before, period_s=50.0, swing=0.0)
    assert [row.arrival_s for row in after] == pytest.approx([row.arrival_s for row in before])

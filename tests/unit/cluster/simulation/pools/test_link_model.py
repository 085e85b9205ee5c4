import pytest

from cluster.messages.transport import LinkSpeed
from cluster.simulation.pools.link_model import LinkModel

FAST = LinkSpeed(latency_s=0.001, bytes_per_s=1000.0)


def test_transfer_takes_its_latency_and_its_bytes() -> None:
    assert LinkModel(FAST).send("p0", "d0", 500, now=2.0) == pytest.approx((2.0, 2.501))


def test_transfers_queue_at_either_end() -> None:
    links = LinkModel(FAST)
    _, first = links.send("p0", "d0", 1000, now=0.0)
    assert links.send("p0", "d1", 1000, now=0.0)[1] == pytest.approx(first + 1.001)
    assert links.send("p1", "d0", 1000, now=0.0)[1] == pytest.approx(first + 1.001)
    assert links.send("p2", "d2", 1000, now=0.0)[1] == pytest.approx(first)


def test_slow_pair_is_slow_alone() -> None:
    links = LinkModel(FAST, {("p0", "d0"): LinkSpeed(latency_s=0.0, bytes_per_s=10.0)})
    assert links.send("p0", "d0", 100, now=0.0) == pytest.approx((0.0, 10.0))
    assert links.send("p1", "d1", 100, now=0.0) == pytest.approx((0.0, 0.101))

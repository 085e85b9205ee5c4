import pytest
from prometheus_client import REGISTRY

from api.latency import RequestLatency
from cluster.types import TokenDelta


def test_ttft_is_the_first_token_and_tpot_the_mean_gap_after_it():
    latency = RequestLatency(arrived_at=100.0)
    latency.released(TokenDelta(0, []), "lat-1", now=100.1)
    latency.released(TokenDelta(0, [1]), "lat-1", now=100.5)
    latency.released(TokenDelta(0, [2, 3]), "lat-1", now=101.5)
    latency.ended("lat-1")
    assert _sum("baton_time_to_first_token_seconds", "lat-1") == pytest.approx(0.5)
    assert _sum("baton_request_time_per_output_token_seconds", "lat-1") == pytest.approx(0.5)


def test_single_token_has_no_tpot():
    latency = RequestLatency(arrived_at=0.0)
    latency.released(TokenDelta(0, [1]), "lat-2", now=1.0)
    latency.ended("lat-2")
    assert _sum("baton_request_time_per_output_token_seconds", "lat-2") is None


def test_tpot_follows_the_first_of_several_sequences():
    latency = RequestLatency(arrived_at=0.0)
    for now in (1.0, 2.0, 3.0):
        latency.released(TokenDelta(0, [1]), "lat-3", now)
        latency.released(TokenDelta(1, [1]), "lat-3", now)
    latency.ended("lat-3")
    assert _sum("baton_request_time_per_output_token_seconds", "lat-3") == pytest.approx(1.0)


def _sum(name: str, path: str) -> float | None:
    return REGISTRY.get_sample_value(f"{name}_sum", {"path": path})

"""Pools that size themselves on real engines: from one decode worker to two and back, under load."""

from collections.abc import Iterator
from typing import Any

import pytest

from bench.fronts.pace import PACE_FILE_VARIABLE, write_pace
from tests.drills.traffic import Traffic
from tests.real_cluster.service import CHANGES, DECODE_PROCESS, Service, wait_for

pytestmark = [pytest.mark.timeout(600), pytest.mark.full_matrix]

STEP_S = 0.05
"""Time of an engine's step, in seconds: as if the model were large, so that one worker carries few streams."""
GROWN_WITHIN_S, SHRUNK_WITHIN_S = 150.0, 150.0
POLICY = {"autoscaling_policy": {"policy_function": "cluster.scaling.serve_policy:ServePolicy"}}


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose decode pool may have two workers, of which each carries four streams within its objectives."""
    folder = tmp_path_factory.mktemp("autoscaling")
    write_pace(folder / "pace", STEP_S)
    changes: dict[str, Any] = {
        **CHANGES,
        "engine": {"distributed_executor_backend": "bench.fronts.executor.PacedExecutor"},
        "decode": {"max_ongoing_requests": 8, "drain_s": 30},
        "scaling": {
            "prefill": {"max": 1},
            "decode": {"max": 2},
            "start_s": 20,
            "down_after_s": 15,
            "empty_s": 30,
        },
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(PACE_FILE_VARIABLE, str(folder / "pace"))
        running = Service(folder, changes, POLICY)
    try:
        running.wait_until_ready()
        yield running
    finally:
        left = running.stop()
    assert not left


def num_decode(service: Service) -> int:
    """Decode workers that report to the Scheduler."""
    return int(service.metric("baton_workers", pool="decode"))


def test_decode_pool_grows_under_load_and_shrinks_without_a_failed_request(growing: Service) -> None:
    assert num_decode(growing) == 1
    traffic = Traffic(lambda: growing.host, growing.port, seed=1, num_at_once=10)
    try:
        wait_for(lambda: num_decode(growing) == 2, GROWN_WITHIN_S, interval_s=1.0)
        wait_for(lambda: len(loads(growing)) == 2 and min(loads(growing)) > 0, 60.0, interval_s=0.5)
    finally:
        traffic.stop()
    assert traffic.outcomes.keys() == {"answered"}, traffic.errors

    light = Traffic(lambda: growing.host, growing.port, seed=1000, num_at_once=1)
    try:
        wait_for(lambda: num_decode(growing) == 1, SHRUNK_WITHIN_S, interval_s=1.0)
        wait_for(lambda: len(growing.processes(DECODE_PROCESS)) == 1, 60.0, interval_s=1.0)
    finally:
        light.stop()
    assert light.outcomes.keys() == {"answered"}, light.errors


def loads(service: Service) -> list[float]:
    """The requests that are placed on each decode worker."""
    return service.samples("baton_placed_requests", pool="decode")

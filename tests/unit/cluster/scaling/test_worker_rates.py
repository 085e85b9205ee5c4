import msgspec
import pytest

from cluster.messages.scaling import OfferedRequest
from cluster.scaling.worker_rates import WorkerRates, worker_rates
from tests.unit.cluster.scaling.readings import ENGINE, SAMPLE, a_reading


def rates(*more: OfferedRequest) -> WorkerRates:
    """Of the usual requests and some more."""
    found = worker_rates(a_reading(sample=[*SAMPLE, *more]), 0.95)
    assert found is not None
    return found


def test_nothing_is_known_without_requests_or_engines() -> None:
    assert worker_rates(a_reading(sample=[]), 0.95) is None
    reading = a_reading()
    bare = msgspec.structs.replace(reading.prefill, engine=None)
    assert worker_rates(msgspec.structs.replace(reading, prefill=bare, decode=bare), 0.95) is None


def test_pool_that_has_had_no_worker_is_taken_for_one_like_the_other() -> None:
    reading = a_reading()
    bare = msgspec.structs.replace(reading.prefill, engine=None)
    assert worker_rates(msgspec.structs.replace(reading, prefill=bare), 0.95) == worker_rates(reading, 0.95)


def test_a_request_that_is_longer_than_the_memory_does_not_stop_the_others_from_being_sized() -> None:
    huge = OfferedRequest(ENGINE.kv_capacity_tokens, 0, 500, 1.0, 3.0, 0.05)
    assert 0 < rates(huge).decode < rates().decode


def test_few_requests_with_a_short_objective_fill_few_workers() -> None:
    times = ENGINE.step_coefficients["fixed_s"]
    hard = [OfferedRequest(1000, 0, 200, 1.0, 3.0, tpot_s) for tpot_s in (1.02 * times, 1.05 * times, 0.5 * times)]
    assert rates(*hard).decode > 0.2 * rates().decode


def test_objectives_that_nobody_can_meet_do_not_make_a_rate_of_nothing() -> None:
    late = [OfferedRequest(1000, 0, 200, 1e-6, 0.0, 1e-6)] * 1000
    found = rates(*late)
    assert found.decode > 1.0 and found.prefill > 0.1


def test_prompts_that_are_cached_take_less() -> None:
    cached = [OfferedRequest(1500, 1400, 200, 1.0, 3.0, 0.05)] * 1000
    assert rates(*cached).prefill == pytest.approx(10 * rates().prefill, rel=0.5)

"""What a handoff takes is learned per link, and a link without a measurement takes what the others do."""

import random
from collections.abc import Callable
from functools import partial
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import WorkerId
from cluster.messages.transport import LinkSpeed
from router.prediction.transfer import TransferModel, TransferModels

P, D, D2 = WorkerId("p"), WorkerId("d"), WorkerId("d2")
FAST = LinkSpeed(latency_s=1e-3, bytes_per_s=10e9)
SLOW = LinkSpeed(latency_s=5e-3, bytes_per_s=0.5e9)


def takes(speed: LinkSpeed, num_bytes: float) -> float:
    return speed.latency_s + num_bytes / speed.bytes_per_s


def teach(observe: Callable[[float, float], None], truth: LinkSpeed, num_samples: int = 50, seed: int = 1) -> None:
    rng = random.Random(seed)
    for _ in range(num_samples):
        num_bytes = 10 ** rng.uniform(6, 9.3)
        observe(num_bytes, takes(truth, num_bytes) * rng.gauss(1, 0.08) * (5 if rng.random() < 0.02 else 1))


@pytest.mark.parametrize("prior", [None, FAST, SLOW])
@pytest.mark.parametrize("truth", [FAST, SLOW])
def test_link_is_learned(prior: LinkSpeed | None, truth: LinkSpeed) -> None:
    model = TransferModel(prior)
    teach(model.observe, truth)
    for num_bytes in (20e6, 200e6, 2e9):
        assert model.seconds(num_bytes) == pytest.approx(takes(truth, num_bytes), rel=0.1)


def test_link_that_was_proved_is_believed_before_its_first_handoff() -> None:
    models = TransferModels()
    assert models.link(P, D, FAST).seconds(1e9) == pytest.approx(takes(FAST, 1e9))
    teach(models.link(P, D, FAST).observe, SLOW)
    assert models.link(P, D, FAST).seconds(1e9) == pytest.approx(takes(SLOW, 1e9), rel=0.1)  # the same proof again
    assert models.link(P, D, None) is models.link(P, D, FAST)
    assert models.link(P, D, SLOW).seconds(1e9) == pytest.approx(takes(SLOW, 1e9))


def test_link_that_was_not_proved_takes_what_the_others_do() -> None:
    models = TransferModels()
    teach(models.link(P, D, FAST).observe, SLOW)
    assert models.link(P, D2, None).seconds(1e9) == pytest.approx(takes(SLOW, 1e9), rel=0.1)
    models.link(P, D2, FAST)
    models.forget(D2)
    assert models.link(P, D2, None).seconds(1e9) == pytest.approx(takes(SLOW, 1e9), rel=0.1)
    assert models.link(P, D, None) is models.link(P, D, FAST)


NEAR, FAR = (0, 0, True), (0, 0, False)


def test_link_without_a_measurement_has_the_speed_of_its_class() -> None:
    models = TransferModels()
    models.class_measured(NEAR, FAST)
    models.class_measured(FAR, SLOW)
    assert models.link(P, D, None, NEAR).seconds(1e9) == pytest.approx(takes(FAST, 1e9))
    assert models.link(P, D, None, FAR).seconds(1e9) == pytest.approx(takes(SLOW, 1e9))
    assert models.link(P, D, SLOW, NEAR).seconds(1e9) == pytest.approx(takes(SLOW, 1e9)), "its own comes first"


def test_handoffs_teach_about_their_link_and_about_its_class() -> None:
    models = TransferModels()
    models.class_measured(NEAR, FAST)
    teach(partial(models.observe, P, D, None, NEAR), SLOW)
    assert models.link(P, D, None, NEAR).seconds(1e9) == pytest.approx(takes(SLOW, 1e9), rel=0.1)
    assert models.link(P, D2, None, NEAR).seconds(1e9) == pytest.approx(takes(SLOW, 1e9), rel=0.1)


def test_slow_link_of_a_fast_class_is_known_to_be_slow() -> None:
    models = TransferModels()
    models.class_measured(NEAR, FAST)
    for number in range(20):
        teach(partial(models.observe, P, D2, None, NEAR), FAST, num_samples=10, seed=number)
        teach(partial(models.observe, P, D, None, NEAR), SLOW, num_samples=2, seed=number)
    assert models.link(P, D, None, NEAR).seconds(1e9) == pytest.approx(takes(SLOW, 1e9), rel=0.2)
    assert models.link(P, D2, None, NEAR).seconds(1e9) == pytest.approx(takes(FAST, 1e9), rel=0.2)


def test_class_that_was_never_measured_learns_from_its_handoffs() -> None:
    """Workers may never be idle for long enough to measure a link."""
    models = TransferModels()
    teach(partial(models.observe, P, D, None, FAR), SLOW)
    teach(partial(models.observe, P, D2, None, NEAR), FAST, num_samples=200)
    assert models.link(WorkerId("p2"), D, None, FAR).seconds(1e9) == pytest.approx(takes(SLOW, 1e9), rel=0.2)


def test_class_that_is_measured_anew_begins_anew_and_goes_on_learning() -> None:
    models = TransferModels()
    models.class_measured(NEAR, FAST)
    teach(partial(models.observe, P, D, None, NEAR), FAST)
    models.class_measured(NEAR, SLOW)
    assert models.link(P, D2, None, NEAR).seconds(1e9) == pytest.approx(takes(SLOW, 1e9))
    teach(partial(models.observe, P, D, None, NEAR), FAST)
    assert models.link(P, D2, None, NEAR).seconds(1e9) == pytest.approx(takes(FAST, 1e9), rel=0.2)


def test_handoff_of_a_worker_that_is_gone_keeps_nothing_of_it() -> None:
    models = TransferModels()
    models.observe(P, D, None, None, 1e9, 0.5)
    assert models.link(P, D, None) is models.link(P, D2, None)
    models.observe(P, D, None, NEAR, 1e9, 0.5)
    assert models.link(P, D, None, NEAR) is not models.link(P, D2, None, NEAR)
    models.forget(P)
    assert models.link(P, D, None, NEAR) is models.link(P, D2, None, NEAR)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=50), st.sampled_from([None, FAST, SLOW]))
def test_transfers_stay_finite_and_grow_with_the_bytes_whatever_was_observed(
    samples: list[tuple[float, float]], prior: LinkSpeed | None
) -> None:
    model = TransferModel(prior)
    for sample in samples:
        model.observe(*sample)
    seconds = [model.seconds(num_bytes) for num_bytes in (1, 1e6, 1e9)]
    assert all(isfinite(s) and s > 0 for s in seconds)
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("num_bytes", "seconds"), [(1e9, nan), (1e9, inf), (1e9, 0), (1e9, -1), (0, 1), (nan, 1)])
def test_sample_of_no_meaning_teaches_nothing(num_bytes: float, seconds: float) -> None:
    model = TransferModel(FAST)
    model.observe(num_bytes, seconds)
    assert model.seconds(1e9) == pytest.approx(takes(FAST, 1e9))

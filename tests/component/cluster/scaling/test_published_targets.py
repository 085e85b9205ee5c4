"""What PoolScaler leaves in Ray's key-value store for the PoolScaler after it."""

from math import inf, nan

import msgspec
import pytest

from cluster.scaling.correction import BOUNDS, KNOWN_S
from cluster.scaling.published_targets import Target, first_correction, publish, published
from tests.component.cluster.scaling.stores import Store, store

__all__ = ["store"]

NOW = 1e9
POOLS = ["PrefillWorker", "DecodeWorker"]
NAMESPACE = b"baton_pool_targets_baton"


def test_new_pool_scaler_begins_with_the_newest_correction(store: Store) -> None:
    publish("baton", {"PrefillWorker": Target(2, NOW - 90, 1.5), "DecodeWorker": Target(3, NOW - 80, 1.7)})
    publish("other", {"PrefillWorker": Target(2, NOW, 3.0)})
    assert first_correction("baton", POOLS, NOW) == 1.7
    assert published("baton", POOLS)["DecodeWorker"].replicas == 3


@pytest.mark.parametrize(
    ("age_s", "correction"),
    [
        (KNOWN_S + 1.0, 1.7),
        (-KNOWN_S - 1.0, 1.7),  # of a clock that is wrong
        (nan, 1.7),
        (1.0, BOUNDS[1] + 0.1),
        (1.0, BOUNDS[0] - 0.1),
        (1.0, 0.0),
        (1.0, -1.0),
        (1.0, inf),
        (1.0, nan),
    ],
)
def test_correction_that_cannot_be_trusted_is_learned_again(store: Store, age_s: float, correction: float) -> None:
    publish("baton", {"PrefillWorker": Target(2, NOW - age_s, correction)})
    assert first_correction("baton", POOLS, NOW) == 1.0


@pytest.mark.parametrize("value", [b"", b"nonsense", msgspec.msgpack.encode([2, NOW, "much"])])
def test_store_that_has_nonsense_keeps_no_pool_scaler_from_its_start(
    store: Store, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store[NAMESPACE, "PrefillWorker"] = value
    assert first_correction("baton", POOLS, NOW) == 1.0
    assert "the correction begins at 1" in caplog.text


def test_first_pool_scaler_and_one_after_an_older_version_begin_at_1(store: Store) -> None:
    assert first_correction("baton", POOLS, NOW) == 1.0
    store[NAMESPACE, "PrefillWorker"] = msgspec.msgpack.encode([2, NOW])
    assert first_correction("baton", POOLS, NOW) == 1.0

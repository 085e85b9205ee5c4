"""The registry of Schedulers: every claim is newer than all before it, whatever happens to the store or to clocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduler_registry import SchedulerRegistry
from tests.unit.factories import an_address
from tests.unit.memory_store import MemoryStore


@given(st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=20))
def test_epochs_rise_whatever_the_clock_does(steps_ms: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        now_ms, registry, epochs = 1_000_000, SchedulerRegistry(MemoryStore()), list[int]()
        for step_ms in steps_ms:
            now_ms += step_ms
            patch.setattr("time.time_ns", lambda now_ms=now_ms: now_ms * 1_000_000)
            epochs.append(registry.claim(an_address(), "n0").epoch)
        assert epochs == sorted(set(epochs))


def test_two_processes_that_claim_at_once_get_different_epochs() -> None:
    store, epochs = MemoryStore(), list[int]()

    def claim_meanwhile() -> None:
        store.before_put = lambda: None
        epochs.append(SchedulerRegistry(store).claim(an_address(), "n1").epoch)

    store.before_put = claim_meanwhile
    epochs.append(SchedulerRegistry(store).claim(an_address(), "n0").epoch)
    assert len(set(epochs)) == 2


def test_epochs_go_on_if_the_store_has_lost_its_content() -> None:
    before = SchedulerRegistry(MemoryStore()).claim(an_address(), "n0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time_ns", lambda: (before.epoch + 5) * 1_000_000)
        assert SchedulerRegistry(MemoryStore()).claim(an_address(), "n0").epoch > before.epoch


def test_record_that_cannot_be_read_is_none_and_is_replaced() -> None:
    store = MemoryStore()
    store.put("newest", b"nonsense")
    registry = SchedulerRegistry(store)
    assert registry.newest() is None
    assert registry.newest() != registry.claim(an_address(), "n0") == registry.newest()


def test_claims_leave_nothing_behind() -> None:
    store = MemoryStore()
    registry = SchedulerRegistry(store)
    for _ in range(10):
        registry.claim(an_address(), "n0")
    assert len(store.values) == 2


def test_highest_epoch_is_known_before_its_claim_is_registered() -> None:
    """Two Schedulers claim at once, and the one with the lower epoch is registered last."""
    store = MemoryStore()
    registry = SchedulerRegistry(store)
    assert registry.highest_epoch() == 0
    low, high = registry.claim(an_address(), "n0"), registry.claim(an_address(), "n1")
    registry.register(low)
    assert registry.newest() == low
    assert registry.highest_epoch() == high.epoch
    store.values = {"newest": store.values["newest"], "epoch-x": b""}
    assert registry.highest_epoch() == low.epoch

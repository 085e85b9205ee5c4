"""Which workers drain, as Schedulers of several epochs write it into one store."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import WorkerId
from cluster.worker_drains import WorkerDrains
from tests.unit.memory_store import MemoryStore

WORKERS = st.lists(st.sampled_from(["d0", "d1", "d2"]).map(WorkerId), unique=True)


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), WORKERS))))
def test_what_the_newest_has_written_counts_whatever_the_replaced_ones_write(
    steps: list[tuple[int, list[WorkerId]] | None],
) -> None:
    """A step is a new Scheduler, or a write: of the newest one, or of one so many before it."""
    store = MemoryStore()
    schedulers, counts = [WorkerDrains(store, 1)], list[WorkerId]()
    assert schedulers[0].take_over() == []
    for step in steps:
        if step is None:
            schedulers.append(WorkerDrains(store, schedulers[-1].epoch + 7))
            assert schedulers[-1].take_over() == counts
            continue
        age, workers = step
        if age < len(schedulers):
            schedulers[-1 - age].write(workers)
            counts = counts if age else workers
    assert WorkerDrains(store, schedulers[-1].epoch + 1).take_over() == counts


def test_schedulers_leave_no_more_than_the_last_two_records() -> None:
    store = MemoryStore()
    for epoch in range(8, 13):  # an epoch with more digits is higher
        drains = WorkerDrains(store, epoch)
        assert drains.take_over() == ([WorkerId("d0")] if epoch > 8 else [])
        drains.write([WorkerId("d0")])
    assert sorted(store.values) == ["draining-11", "draining-12"]


def test_scheduler_that_starts_late_changes_nothing_for_a_newer_one() -> None:
    store = MemoryStore()
    WorkerDrains(store, 1).write([WorkerId("d0")])
    WorkerDrains(store, 3).take_over()
    late = WorkerDrains(store, 2)
    assert late.take_over() == ["d0"]
    late.write([WorkerId("d1")])
    assert WorkerDrains(store, 4).take_over() == ["d0"]


def test_key_of_another_kind_is_ignored() -> None:
    store = MemoryStore()
    store.values |= {"draining-": b"", "draining-x": b"", "other-9": b""}
    assert WorkerDrains(store, 1).take_over() == []

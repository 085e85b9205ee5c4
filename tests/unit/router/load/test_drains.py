from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import WorkerId
from router.load.drains import Drains

NAMES = st.sampled_from([WorkerId(f"w{number}") for number in range(8)])


@given(st.lists(st.tuples(NAMES, st.booleans())), st.sets(NAMES))
def test_drains_are_those_that_were_begun_and_not_undone(
    changes: list[tuple[WorkerId, bool]], known: set[WorkerId]
) -> None:
    drains, expected = Drains(), dict[WorkerId, None]()
    for worker, begins in changes:
        drains.put(drains.with_change(worker, known, drains=begins))
        expected.pop(worker, None)
        if begins:
            expected[worker] = None
    assert drains.workers == frozenset(expected)
    assert drains.with_change(WorkerId("new"), known, drains=True) == [*expected, "new"]


@given(st.lists(NAMES, unique=True), st.sets(NAMES), st.integers(1, 8))
def test_drains_of_workers_that_are_known_are_never_forgotten(
    order: list[WorkerId], known: set[WorkerId], most: int
) -> None:
    drains = Drains()
    for worker in order:
        drains.put(drains.with_change(worker, known, drains=True, most=most))
    kept = [worker for worker in order if worker in drains.workers]
    assert {*order} & known <= drains.workers
    assert len(kept) <= max(most, len({*order} & known))
    unknown = [worker for worker in order if worker not in known]
    kept_unknown = [worker for worker in kept if worker not in known]
    assert not kept_unknown or kept_unknown == unknown[len(unknown) - len(kept_unknown) :]


def test_retiring_ends_by_itself() -> None:
    drains = Drains()
    assert drains.retire(frozenset({WorkerId("w0")}), until=30.0)
    assert not drains.retire(frozenset({WorkerId("w0")}), until=40.0)
    assert drains.retiring(39.9) == {"w0"}
    assert drains.retiring(40.0) == frozenset()

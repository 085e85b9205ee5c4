"""Which cells drain, as an operator has written and as an ingress reads."""

import pytest

from cluster.cell_states import CellStates
from cluster.messages.ids import CellName
from tests.unit.memory_store import MemoryStore

A, B, C = CellName("a"), CellName("b"), CellName("c")


def test_cell_drains_until_it_is_opened() -> None:
    states = CellStates(MemoryStore())
    assert states.draining([A, B]) == frozenset()
    states.drain(A)
    states.drain(A)
    assert states.draining([A, B]) == {A}
    states.open(A)
    states.open(B)
    assert states.draining([A, B]) == frozenset()


def test_cell_that_the_application_has_no_more_is_not_read() -> None:
    states = CellStates(MemoryStore())
    states.drain(A)
    assert states.draining([B]) == frozenset()


def test_second_of_two_operators_who_drain_at_the_same_time_takes_his_mark_back() -> None:
    """The other one writes between the check and the write of this one."""
    store = MemoryStore()
    ours, theirs = CellStates(store), CellStates(store)

    def drain_the_other_cell() -> None:
        store.before_put = lambda: None
        theirs.drain_unless_last(B, [A, B])

    store.before_put = drain_the_other_cell
    with pytest.raises(ValueError, match="cell a was opened again"):
        ours.drain_unless_last(A, [A, B])
    assert ours.draining([A, B]) == {B}


def test_cell_is_not_drained_where_the_ingress_has_not_heard_of_the_last_drain_yet() -> None:
    states = CellStates(MemoryStore())
    states.drain(B)
    with pytest.raises(ValueError, match="no other cell than a is open"):
        states.drain_unless_last(A, [A, B])
    states.drain_unless_last(A, [A, B, C])
    assert states.draining([A, B, C]) == {A, B}


def test_cell_that_drains_already_is_not_opened_by_a_second_drain() -> None:
    store = MemoryStore()
    states = CellStates(store)
    states.drain(A)
    store.before_put = lambda: store.values.update(b=store.values["a"])
    states.drain_unless_last(A, [B])
    assert states.draining([A, B]) == {A, B}

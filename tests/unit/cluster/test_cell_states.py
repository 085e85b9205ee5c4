"""Which cells drain, as an operator has written and as an ingress reads."""

from cluster.cell_states import CellStates
from cluster.messages.ids import CellName
from tests.unit.memory_store import MemoryStore

A, B = CellName("a"), CellName("b")


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

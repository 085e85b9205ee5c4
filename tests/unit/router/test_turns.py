"""Things that wait are taken in the order of their owner, and owners take turns."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from router.turns import Turns


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_owners_take_turns_and_keep_their_own_order(owners: list[str]) -> None:
    turns: Turns[str, int] = Turns()
    for number, owner in enumerate(owners):
        turns.add(owner, number)
        turns.validate()
    taken = defaultdict[str, list[int]](list)
    while turns:
        waiting = {owner for owner, _ in turns}
        first = {owner: len(taken[owner]) for owner in waiting}
        for _ in waiting:
            owner, number = turns.take()
            taken[owner].append(number)
            turns.validate()
        assert all(len(taken[owner]) == first[owner] + 1 for owner in waiting), "each owner has had one turn"
    assert dict(taken) == {owner: [n for n, other in enumerate(owners) if other == owner] for owner in set(owners)}


def test_owner_whose_things_are_dropped_has_no_turn() -> None:
    turns: Turns[str, int] = Turns()
    for owner, number in (("a", 1), ("b", 2), ("a", 3)):
        turns.add(owner, number)
    assert turns.drop("a") == [1, 3]
    assert (len(turns), "a" in turns, "b" in turns) == (1, False, True)
    assert turns.drop("nobody") == []
    turns.validate()
    assert turns.take() == ("b", 2)


def test_owner_has_its_share_once_so_many_wait() -> None:
    turns: Turns[str, int] = Turns()
    for number in range(9):
        turns.add("much", number)
    assert not turns.has_share("much", 10), "there is room"
    turns.add("little", 9)
    assert turns.has_share("much", 10)
    assert not turns.has_share("little", 10)
    assert not turns.has_share("nothing", 10)

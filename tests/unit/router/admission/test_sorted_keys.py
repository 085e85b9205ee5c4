"""Keys stay in their order, in as many chunks as they need."""

import random

from hypothesis import given
from hypothesis import strategies as st

from router.admission.sorted_keys import MOST_IN_CHUNK, Key, SortedKeys

KEYS = st.tuples(st.integers(0, 2), st.floats(0, 4), st.integers(0, 50))


@given(st.lists(st.tuples(st.booleans(), KEYS)), KEYS)
def test_keys_are_those_of_a_sorted_list(changes: list[tuple[bool, Key]], asked: Key) -> None:
    keys, model = SortedKeys(), set[Key]()
    for is_added, key in changes:
        if is_added and key not in model:
            keys.add(key)
            model.add(key)
        elif not is_added and key in model:
            keys.remove(key)
            model.remove(key)
        keys.validate()
    assert list(keys) == sorted(model)
    assert keys.first() == min(model, default=None)
    assert keys.num_before(asked) == sum(key < asked for key in model)


def test_thousands_of_keys_are_divided_and_still_in_order() -> None:
    chance, keys, model = random.Random(0), SortedKeys(), list[Key]()
    for number in range(8 * MOST_IN_CHUNK):
        model.append((chance.randint(0, 2), chance.random(), number))
        keys.add(model[-1])
    keys.validate()
    chance.shuffle(model)
    for _ in range(6 * MOST_IN_CHUNK):
        keys.remove(model.pop())
    keys.validate()
    assert list(keys) == sorted(model)
    assert [keys.num_before(key) for key in sorted(model)] == list(range(len(model)))

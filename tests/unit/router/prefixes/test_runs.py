from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.prefixes.runs import runs

masks = st.dictionaries(st.sampled_from([b"%d" % number for number in range(9)]), st.integers(1, 3))


@given(masks, st.lists(st.sampled_from([b"%d" % number for number in range(12)]), max_size=40))
def test_runs_are_the_longest_parts_of_equal_masks(masks: dict[bytes, int], blocks: list[bytes]) -> None:
    found = list(runs(masks, blocks))
    assert [mask for mask, start, end in found for _ in range(start, end)] == [masks.get(b, 0) for b in blocks]
    assert all(one[0] != next_[0] and one[2] == next_[1] for one, next_ in pairwise(found))


def test_entries_may_change_behind_the_walk() -> None:
    masks, blocks = {b"a": 1, b"b": 1, b"c": 2}, [b"a", b"b", b"c", b"d"]
    found = []
    for mask, start, end in runs(masks, blocks):
        found.append((mask, start, end))
        masks.update(dict.fromkeys(blocks[start:end], 7))
    assert found == [(1, 0, 2), (2, 2, 3), (0, 3, 4)]

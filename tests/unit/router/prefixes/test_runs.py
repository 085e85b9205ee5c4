from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.prefixes.runs import runs


@given(st.lists(st.integers(0, 3), max_size=40))
def test_runs_are_the_longest_parts_of_equal_masks(masks: list[int]) -> None:
    found = list(runs(masks))
    assert [mask for mask, start, end in found for _ in range(start, end)] == masks
    assert all(one[0] != next_[0] and one[2] == next_[1] for one, next_ in pairwise(found))

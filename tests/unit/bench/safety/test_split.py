"""Which examples are in one part."""

import numpy as np

from bench.safety.examples import Example
from bench.safety.split import HELD_OUT, NUM_PARTS, near_duplicates, nearest_learned, parts_of


def an_example(number: int, file: str = "benign") -> Example:
    """With words that no other one has."""
    return Example(file, False, " ".join(f"w{number}x{place}" for place in range(8)))


def test_all_parts_have_about_as_many_of_each_file() -> None:
    examples = [an_example(number, file) for number, file in enumerate(["benign"] * 100 + ["hard-negatives"] * 50)]
    counts = np.bincount(parts_of(examples)[:100])
    assert len(counts) == NUM_PARTS
    assert counts.max() - counts.min() <= 1


def test_neighbours_are_mostly_in_one_part() -> None:
    parts = parts_of([an_example(number) for number in range(100)])
    assert (np.diff(parts) != 0).sum() < 2 * NUM_PARTS


def test_near_duplicates_are_in_one_part_whatever_their_files() -> None:
    examples = [an_example(number) for number in range(100)]
    changed = [*examples[0].words[:7], "other"]
    examples.append(Example("hard-negatives", False, " ".join(changed)))
    examples[99] = Example("benign", False, " ".join(reversed(changed)))
    parts = parts_of(examples)
    assert parts[0] == parts[99] == parts[100]


def test_texts_with_nothing_but_common_words_in_common_are_no_duplicates() -> None:
    examples = [Example("benign", False, f"{an_example(number).text} the of") for number in range(50)]
    assert len(set(near_duplicates(examples).tolist())) == 50


def test_likeness_of_a_held_out_text_is_that_to_the_nearest_learned_one() -> None:
    examples = [an_example(1), an_example(1, "hate"), an_example(2), an_example(2), an_example(3)]
    parts = np.array([0, HELD_OUT, HELD_OUT, HELD_OUT, 0])
    assert np.allclose(nearest_learned(examples, parts), [1.0, 0.0, 0.0])

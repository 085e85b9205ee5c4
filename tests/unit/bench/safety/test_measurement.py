"""What the figures of the report count."""

import numpy as np
import pytest

from bench.safety.measurement import LIKE_FROM, SCORES_FROM, Share, recall_by_likeness, score_ranges, text_quality

UNKNOWN = np.nan


@pytest.mark.parametrize(
    ("share", "low", "high"), [(Share(0, 0), 0, 1), (Share(0, 10), 0, 0.278), (Share(5, 10), 0.237, 0.763)]
)
def test_interval_is_wilsons(share: Share, low: float, high: float) -> None:
    assert share.interval == pytest.approx((low, high), abs=1e-3)


def test_text_of_a_category_and_its_parent_counts_once() -> None:
    found = text_quality(np.array([[1.0, 1.0]]), np.array([[0.9, 0.9]]), 0.8)
    assert found == (Share(1, 1), Share(1, 1))


def test_text_that_scores_in_another_category_than_its_own_is_a_wrong_hit() -> None:
    found = text_quality(np.array([[1.0, 0.0]]), np.array([[0.1, 0.9]]), 0.8)
    assert found == (Share(0, 1), Share(0, 1))


def test_hit_in_a_category_that_is_not_known_of_a_text_does_not_count() -> None:
    found = text_quality(np.array([[UNKNOWN, 0.0]]), np.array([[0.9, 0.1]]), 0.8)
    assert found == (Share(0, 0), Share(0, 0))


def test_range_of_scores_has_its_mean_and_the_share_that_is_of_the_category() -> None:
    labels = np.array([[1.0], [0.0], [0.0], [UNKNOWN], [1.0]])
    scores = np.array([[0.8], [0.85], [0.9], [0.9], [0.1]])
    found = dict(zip(SCORES_FROM, score_ranges(labels, scores), strict=True))
    assert found[0.8].mean == pytest.approx(0.85)
    assert found[0.8].is_of == Share(1, 3)
    assert found[0.0].is_of == Share(1, 1)
    assert found[0.65].is_of == Share(0, 0)


def test_score_of_one_is_in_the_highest_range() -> None:
    assert score_ranges(np.array([[1.0]]), np.array([[1.0]]))[-1].is_of == Share(1, 1)


def test_recall_is_by_likeness_to_what_was_learned() -> None:
    labels, scores = np.array([[1.0], [1.0], [1.0], [0.0]]), np.array([[0.1], [0.6], [0.4], [0.9]])
    found = recall_by_likeness(labels, scores, np.array([0.0, 0.35, 0.3, 0.3]))
    assert dict(zip(LIKE_FROM, found, strict=True)) == {0.0: Share(0, 1), 0.2: Share(0, 0), 0.3: Share(1, 2)}

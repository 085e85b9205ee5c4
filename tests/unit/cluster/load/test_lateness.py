"""Stalls of the generator count by the time that they took, not by how many there were."""

import pytest

from cluster.load.lateness import lag_exceeded, share_later

STALLS = [0.0005] * 530 + [0.6] * 4
WALL_S = 13.0


def test_four_stalls_in_13_seconds_are_a_fifth_of_the_time() -> None:
    assert share_later(STALLS, 0.01, WALL_S) == pytest.approx(4 * 0.59 / WALL_S)


def test_lag_at_p99_is_that_of_what_came_during_the_stalls() -> None:
    assert lag_exceeded(STALLS, 0.01, WALL_S) == pytest.approx(0.6 - 0.13 / 4)


def test_lag_of_stalls_of_several_lengths_is_exceeded_for_the_share_that_was_asked_for() -> None:
    stalls = [0.5, 0.1, 0.3, 0.02, 0.3]
    for share in (0.001, 0.01, 0.05, 0.1):
        assert share_later(stalls, lag_exceeded(stalls, share, 10.0), 10.0) == pytest.approx(share)


def test_generator_that_was_never_late_has_no_lag() -> None:
    assert lag_exceeded([], 0.01, 5.0) == share_later([], 0.01, 5.0) == 0.0
    assert lag_exceeded([0.001] * 10, 0.01, 5.0) == 0.0

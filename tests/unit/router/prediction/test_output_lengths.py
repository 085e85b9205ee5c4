import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prediction.output_lengths import (
    BIN_RATIO,
    HALF_LIFE,
    LONGEST,
    MAX_KINDS,
    MIN_SAMPLES,
    LengthHistogram,
    OutputLengths,
)

lengths = st.lists(st.integers(1, 2 * LONGEST), min_size=1, max_size=60)


def a_histogram(*tokens: int) -> LengthHistogram:
    histogram = LengthHistogram()
    for num_tokens in tokens:
        histogram.add(num_tokens)
    return histogram


@given(lengths, st.floats(0.01, 0.98), st.floats(0.0, 0.01))
def test_larger_share_has_a_larger_quantile_within_what_was_seen(tokens: list[int], share: float, more: float) -> None:
    histogram = a_histogram(*tokens)
    low, high = histogram.quantile(share), histogram.quantile(share + more)
    shortest, longest = min(*tokens, LONGEST), min(max(tokens), LONGEST)
    assert shortest / BIN_RATIO - 1 <= low <= high <= longest * BIN_RATIO + 1


@given(lengths, st.integers(0, 2 * LONGEST))
def test_running_request_always_has_a_token_to_come(tokens: list[int], num_generated: int) -> None:
    assert 1.0 <= a_histogram(*tokens).residual(num_generated) <= 2 * LONGEST


def test_quantiles_of_lengths_that_are_known() -> None:
    histogram = a_histogram(*[number * 7 % 401 for number in range(1, 401)])
    for share in (0.2, 0.5, 0.8):
        assert histogram.quantile(share) == pytest.approx(400 * share, rel=0.1)


def test_long_running_request_is_taken_for_one_of_the_long_ones() -> None:
    histogram = a_histogram(*[100] * 90, *[2000] * 10)
    assert histogram.residual(1) == pytest.approx(100, rel=BIN_RATIO - 1)
    assert histogram.residual(500) == pytest.approx(1500, rel=BIN_RATIO - 1)


def test_request_longer_than_all_before_is_half_done() -> None:
    assert a_histogram(100).residual(1000) == pytest.approx(1000, rel=BIN_RATIO - 1)


def test_answers_follow_what_has_been_added_since() -> None:
    histogram = a_histogram(100)
    before = histogram.quantile(0.5), histogram.residual(1)
    for _ in range(3):
        histogram.add(5000)
    assert histogram.quantile(0.5) > 10 * before[0]
    assert histogram.residual(1) > 10 * before[1]


def test_old_lengths_are_forgotten() -> None:
    histogram = a_histogram(*[1000] * HALF_LIFE, *[10] * (2 * HALF_LIFE))
    assert histogram.quantile(0.8) == pytest.approx(10, rel=BIN_RATIO - 1)
    assert histogram.quantile(0.95) > 500


def test_histogram_of_very_many_lengths_stays_finite() -> None:
    histogram = a_histogram(*[100] * (40 * HALF_LIFE))
    assert histogram.quantile(0.5) == pytest.approx(100, rel=BIN_RATIO - 1)


def test_kind_is_told_apart_once_enough_of_it_have_ended() -> None:
    known = OutputLengths()
    for _ in range(int(MIN_SAMPLES) - 1):
        known.add("long", 4000)
    assert known.of("long") is known.of("other")
    known.add("long", 4000)
    assert known.of("long").quantile(0.5) > 3000
    assert known.of("long") is not known.of("other")


def test_request_without_a_token_teaches_nothing() -> None:
    known = OutputLengths()
    before = known.of("kind").num_samples
    known.add("kind", 0)
    known.add("kind", -3)
    assert known.of("kind").num_samples == before


def test_number_of_kinds_is_bounded() -> None:
    known = OutputLengths()
    for _ in range(int(MIN_SAMPLES)):
        known.add("first", 4000)
    for number in range(MAX_KINDS):
        known.add(number, 10)
    assert known.of("first") is known.of("nobody")


def test_kind_that_goes_on_is_remembered_however_many_others_come_once() -> None:
    known = OutputLengths()
    for number in range(20 * MAX_KINDS):
        known.add(number, 10)
        if number % 100 == 0:
            known.add("steady", 4000)
    assert known.of("steady").quantile(0.5) > 3000

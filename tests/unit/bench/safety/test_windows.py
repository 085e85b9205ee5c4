"""The windows that weights are fitted on."""

from random import Random

import pytest

from api.safety.classifiers.features import MIN_WORDS, WINDOW_WORDS
from bench.safety.examples import Example
from bench.safety.windows import EMBEDDED_WEIGHT, TrainingWindow, training_windows

LONG = tuple(f"w{number}" for number in range(40))
HARMLESS = Example("benign", False, " ".join(LONG))
HARMFUL = Example("hate", True, " ".join(f"bad{number}" for number in range(40)))


def windows_of(place: int) -> list[TrainingWindow]:
    return [one for one in training_windows([HARMLESS, HARMFUL], Random(1)) if one.example == place]


def test_windows_are_no_longer_than_those_that_the_ingress_judges() -> None:
    assert all(MIN_WORDS <= len(one.words) <= WINDOW_WORDS for place in (0, 1) for one in windows_of(place))


def test_harmless_text_is_seen_from_its_first_words_on() -> None:
    assert min(len(one.words) for one in windows_of(0)) == MIN_WORDS


def test_harmful_text_is_seen_in_full_windows_and_at_its_end() -> None:
    own = [one for one in windows_of(1) if one.words[0].startswith("bad")]
    assert all(len(one.words) == WINDOW_WORDS for one in own)
    assert own[-1].words[-1] == "bad39"


def test_window_knows_the_word_before_it() -> None:
    assert all(one.before == LONG[LONG.index(one.words[0]) - 1] for one in windows_of(0) if one.words[0] in LONG[3:4])
    assert windows_of(0)[0].before == ""


def test_all_texts_weigh_the_same_however_long() -> None:
    for place in (0, 1):
        assert sum(one.weight for one in windows_of(place)) == pytest.approx(1 + EMBEDDED_WEIGHT)

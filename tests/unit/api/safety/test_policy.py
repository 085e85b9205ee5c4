"""A policy blocks what its thresholds say, and a request can only tighten it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.policy import NEVER_OFF, Policy, Threshold
from api.safety.verdict import Category

THRESHOLDS = st.dictionaries(st.sampled_from(list(Category)), st.sampled_from(list(Threshold)))
SCORES = st.dictionaries(st.sampled_from(list(Category)), st.floats(0, 1))
ORDER = list(Threshold)


@pytest.mark.parametrize(
    ("threshold", "blocked"),
    [
        (Threshold.OFF, []),
        (Threshold.ONLY_HIGH, [0.9]),
        (Threshold.MEDIUM, [0.6, 0.9]),
        (Threshold.LOW, [0.3, 0.6, 0.9]),
    ],
)
def test_threshold_blocks_from_its_level_on(threshold: Threshold, blocked: list[float]) -> None:
    policy = Policy(default_threshold=threshold)
    assert [score for score in (0.1, 0.3, 0.6, 0.9) if policy.blocked({Category.HATE: score})] == blocked


@given(THRESHOLDS, THRESHOLDS, SCORES)
def test_request_only_tightens(
    own: dict[Category, Threshold], asked: dict[Category, Threshold], scores: dict[Category, float]
) -> None:
    policy = Policy(thresholds=own)
    tighter = policy.tightened(asked)
    for category in Category:
        assert ORDER.index(tighter.threshold(category)) >= ORDER.index(policy.threshold(category))
        assert ORDER.index(tighter.threshold(category)) >= ORDER.index(asked.get(category, Threshold.OFF))
    assert set(policy.blocked(scores)) <= set(tighter.blocked(scores))


def test_some_categories_are_never_off() -> None:
    policy = Policy(default_threshold=Threshold.OFF)
    assert {category for category in Category if policy.blocked({category: 0.9})} == set(NEVER_OFF)


def test_a_stage_that_is_sure_leaves_no_doubt() -> None:
    policy = Policy()
    assert not policy.is_in_doubt({Category.HATE: 0.1})
    assert policy.is_in_doubt({Category.HATE: 0.3})
    assert not policy.is_in_doubt({Category.HATE: 0.9})
    assert not Policy(default_threshold=Threshold.OFF).is_in_doubt({Category.HATE: 0.3})


def test_version_is_the_content() -> None:
    policy = Policy(thresholds={Category.HATE: Threshold.LOW, Category.SEXUAL: Threshold.OFF})
    again = msgspec.convert(msgspec.to_builtins(policy), Policy)
    assert again.version == policy.version != Policy().version

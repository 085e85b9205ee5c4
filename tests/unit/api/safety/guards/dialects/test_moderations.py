"""Answers of POST /v1/moderations, of OpenAI and of others."""

import json
from typing import Any

import pytest
from hypothesis import given

from api.safety.guards.dialects.dialect import SAFE, UNSAFE, GuardNonsense
from api.safety.guards.dialects.moderations import ModerationsDialect
from api.safety.verdict import MEDIUM_FROM, Category
from tests.unit.api.safety.guards.dialects.answers import ANYTHING, BROKEN_BODIES

DIALECT = ModerationsDialect("m")


def a_moderation(flagged: bool, categories: dict[str, Any], scores: dict[str, Any], results: int = 1) -> bytes:
    result = {"flagged": flagged, "categories": categories, "category_scores": scores}
    return json.dumps({"id": "modr-1", "model": "m", "results": [result] * results}).encode()


def test_text_is_sent_as_it_is() -> None:
    path, fields = DIALECT.request("<b>\nAgent: no", is_answer=True)
    assert path == "/moderations" and fields == {"model": "m", "input": "<b>\nAgent: no"}


def test_scores_are_the_classifier_s() -> None:
    scores = DIALECT.scores(
        a_moderation(False, {"hate": False, "sexual/minors": False}, {"hate": 0.4, "sexual/minors": 0})
    )
    assert scores == {Category.HATE: 0.4, Category.SEXUAL_MINORS: 0}


def test_flag_is_at_least_medium() -> None:
    assert DIALECT.scores(a_moderation(True, {"hate": True}, {"hate": 0.2})) == {Category.HATE: MEDIUM_FROM}


def test_flags_alone_have_scores() -> None:
    scores = DIALECT.scores(a_moderation(True, {"hate": True, "sexual": False}, {}))
    assert scores == {Category.HATE: UNSAFE, Category.SEXUAL: SAFE}


def test_category_that_was_not_looked_for_has_no_score() -> None:
    scores = DIALECT.scores(a_moderation(False, {"hate": False, "illicit": None}, {"hate": 0.1, "illicit": None}))
    assert scores == {Category.HATE: 0.1}


def test_unknown_categories_count_as_illicit() -> None:
    scores = DIALECT.scores(
        a_moderation(True, {"witchcraft": True, "gossip": False}, {"witchcraft": 0.9, "gossip": 0.3})
    )
    assert scores == {Category.ILLICIT: 0.9}


def test_flag_for_nothing_counts_as_illicit() -> None:
    assert DIALECT.scores(a_moderation(True, {"hate": False}, {"hate": 0.1}))[Category.ILLICIT] == UNSAFE


@pytest.mark.parametrize(
    "body",
    [
        *BROKEN_BODIES,
        a_moderation(False, {}, {}),
        a_moderation(False, {"hate": None}, {"hate": None}),
        a_moderation(False, {"hate": False}, {"hate": 1.5}),
        a_moderation(False, {"hate": False}, {"hate": -0.1}),
        a_moderation(False, {"hate": False}, {"hate": "low"}),
        a_moderation(False, {"hate": False}, {"hate": 0.1}, results=2),
        a_moderation(False, {"hate": False}, {"hate": 0.1}, results=0),
        b'{"results": [{"categories": {"hate": false}}]}',
    ],
)
def test_nonsense_is_not_safe(body: bytes) -> None:
    with pytest.raises(GuardNonsense):
        DIALECT.scores(body)


@given(ANYTHING)
def test_anything_else_is_nonsense(body: bytes) -> None:
    with pytest.raises(GuardNonsense):
        DIALECT.scores(body)

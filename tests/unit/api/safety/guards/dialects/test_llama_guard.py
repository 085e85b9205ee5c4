"""Llama Guard's verdicts in our categories."""

import pytest
from hypothesis import given

from api.safety.guards.dialects.dialect import SAFE, UNSAFE, WITHOUT_CATEGORY, GuardNonsense
from api.safety.guards.dialects.llama_guard import HAZARDS, LlamaGuardDialect
from api.safety.verdict import MEDIUM_FROM, Category, Level, level_of
from tests.unit.api.safety.guards.dialects.answers import ANYTHING, BROKEN_BODIES, a_chat, a_token

DIALECT = LlamaGuardDialect("m")


def flagged(content: str) -> set[Category]:
    return {category for category, score in DIALECT.scores(a_chat(content)).items() if score >= MEDIUM_FROM}


@pytest.mark.parametrize(
    ("content", "categories"),
    [
        ("safe", set()),
        ("\n\nsafe\n", set()),
        ("unsafe\nS10", {Category.HATE}),
        ("\n\nunsafe\nS1,S10", {Category.VIOLENCE, Category.ILLICIT_VIOLENT, Category.HATE}),
        ("unsafe\nS4", {Category.SEXUAL_MINORS}),
        ("unsafe S11, s12", {Category.SELF_HARM, Category.SEXUAL}),
        ("unsafe\nS99", {Category.ILLICIT}),
        ("unsafe\nS7,S99", {Category.PERSONAL_DATA, Category.ILLICIT}),
        ("unsafe", {Category.ILLICIT}),
        ("unsafe\nS1", {Category.VIOLENCE, Category.ILLICIT_VIOLENT}),
        ("unsafe\nsafe", {Category.ILLICIT}),
        ("UNSAFE: it is about weapons", {Category.ILLICIT}),
    ],
)
def test_verdict_is_in_our_categories(content: str, categories: set[Category]) -> None:
    assert flagged(content) == categories


@pytest.mark.parametrize("code", ["S6", "S8", "S13"])
def test_hazard_that_no_category_has_is_blocked_by_the_tightest_threshold_only(code: str) -> None:
    score = DIALECT.scores(a_chat(f"unsafe\n{code}"))[Category.ILLICIT]
    assert score == WITHOUT_CATEGORY and level_of(score) is Level.LOW
    assert DIALECT.scores(a_chat(f"unsafe\n{code},S2"))[Category.ILLICIT] == UNSAFE


@pytest.mark.parametrize(
    "content", ["", "  ", "safe\nS1", "safe unsafe", "safely", "I think it is safe", "saf", "**safe**", "Safety: Safe"]
)
def test_nonsense_is_not_safe(content: str) -> None:
    with pytest.raises(GuardNonsense):
        DIALECT.scores(a_chat(content))


@pytest.mark.parametrize("body", BROKEN_BODIES)
def test_broken_answer_is_not_safe(body: bytes) -> None:
    with pytest.raises(GuardNonsense):
        DIALECT.scores(body)


@given(ANYTHING)
def test_anything_else_is_nonsense(body: bytes) -> None:
    with pytest.raises(GuardNonsense):
        DIALECT.scores(body)


def test_probability_is_the_score() -> None:
    sure = DIALECT.scores(a_chat("unsafe\nS10", [a_token({"unsafe": 0.9, "safe": 0.1})]))
    assert sure[Category.HATE] == pytest.approx(0.9) and sure[Category.SEXUAL] == SAFE
    doubtful = DIALECT.scores(a_chat("safe", [a_token({"safe": 0.7, "unsafe": 0.3})]))
    assert doubtful[Category.ILLICIT] == pytest.approx(0.3) and doubtful[Category.SEXUAL_MINORS] == SAFE


def test_probability_does_not_take_the_verdict_back() -> None:
    taken = DIALECT.scores(a_chat("unsafe\nS10", [a_token({"safe": 0.99, "unsafe": 0.01})]))
    assert taken[Category.HATE] == MEDIUM_FROM
    assert DIALECT.scores(a_chat("safe", [a_token({"unsafe": 0.9, "safe": 0.1})]))[Category.ILLICIT] > MEDIUM_FROM


def test_each_verdict_has_all_categories_that_were_looked_for() -> None:
    assert HAZARDS.of_safe(SAFE).keys() == HAZARDS.of_unsafe(["s1"], UNSAFE).keys()

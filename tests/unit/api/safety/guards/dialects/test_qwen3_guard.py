"""Qwen3Guard's levels and categories in ours."""

import pytest
from hypothesis import given

from api.safety.guards.dialects.dialect import SAFE, WITHOUT_CATEGORY, GuardNonsense
from api.safety.guards.dialects.qwen3_guard import CONTROVERSIAL, Qwen3GuardDialect
from api.safety.verdict import MEDIUM_FROM, Category, Level, level_of
from tests.unit.api.safety.guards.dialects.answers import ANYTHING, BROKEN_BODIES, a_chat, a_token

DIALECT = Qwen3GuardDialect("m")


def flagged(content: str) -> set[Category]:
    return {category for category, score in DIALECT.scores(a_chat(content)).items() if score >= MEDIUM_FROM}


@pytest.mark.parametrize(
    ("content", "categories"),
    [
        ("Safety: Safe\nCategories: None", set()),
        ("Safety: Safe\nCategories: None\nRefusal: Yes", set()),
        ("Safety: Safe", set()),
        ("Safety: Unsafe\nCategories: Violent", {Category.VIOLENCE, Category.ILLICIT_VIOLENT}),
        ("Safety: Unsafe\nCategories: PII, Suicide & Self-Harm", {Category.PERSONAL_DATA, Category.SELF_HARM}),
        ("Safety: Unsafe\nCategories: Jailbreak\nRefusal: No", {Category.PROMPT_INJECTION}),
        ("Safety: Controversial\nCategories: Sexual Content or Sexual Acts", {Category.SEXUAL}),
        ("Safety: Unsafe\nCategories: Unethical Acts", {Category.HATE, Category.HARASSMENT}),
        ("Safety: Unsafe\nCategories: Witchcraft", {Category.ILLICIT}),
        ("Safety: Unsafe\nCategories: None", {Category.ILLICIT}),
        ("Safety: Unsafe", {Category.ILLICIT}),
        ("Safety: Unsafe\nSafety: Safe\nCategories: None", {Category.ILLICIT}),
    ],
)
def test_verdict_is_in_our_categories(content: str, categories: set[Category]) -> None:
    assert flagged(content) == categories


def test_controversial_is_between_safe_and_unsafe() -> None:
    scores = DIALECT.scores(a_chat("Safety: Controversial\nCategories: Violent"))
    assert level_of(scores[Category.VIOLENCE]) is Level.MEDIUM
    assert level_of(DIALECT.scores(a_chat("Safety: Unsafe\nCategories: Violent"))[Category.VIOLENCE]) is Level.HIGH


@pytest.mark.parametrize("name", ["Politically Sensitive Topics", "Copyright Violation"])
def test_hazard_that_no_category_has_is_blocked_by_the_tightest_threshold_only(name: str) -> None:
    assert DIALECT.scores(a_chat(f"Safety: Unsafe\nCategories: {name}"))[Category.ILLICIT] == WITHOUT_CATEGORY


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            "Safe",
            "safe",
            "Safety:",
            "Safety: Safeish",
            "Safety: Safe\nCategories: Violent",
            "Safety: Safe\nbut deadly",
        ),
        *("It is fine. Safety: Safe", "Categories: None\nSafety: Safe", "Safety: Safe Safety: Unsafe"),
    ],
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
    def tokens(probabilities: dict[str, float]) -> list[object]:
        return [a_token({"Safety": 1.0}), a_token({":": 1.0}), a_token(probabilities)]

    unsafe = DIALECT.scores(
        a_chat("Safety: Unsafe\nCategories: Violent", tokens({" Unsafe": 0.6, " Controversial": 0.3, " Safe": 0.1}))
    )
    assert unsafe[Category.VIOLENCE] == pytest.approx(0.6 + 0.3 * CONTROVERSIAL)
    safe = DIALECT.scores(
        a_chat("Safety: Safe\nCategories: None", tokens({" Safe": 0.6, " Contro": 0.3, " Unsafe": 0.1}))
    )
    assert safe[Category.ILLICIT] == pytest.approx(0.1 + 0.3 * CONTROVERSIAL) and safe[Category.HATE] == SAFE

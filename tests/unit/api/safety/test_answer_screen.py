"""Pieces leave when every stage that must see them has, and never after a cut."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.answer_screen import WINDOW_LENGTH, AnswerScreen
from api.safety.judge import judged_text
from api.safety.pieces import CUT, Piece
from api.safety.policy import OnPersonalData, PersonalKind, Policy, Runs, SafetyStage, StagePolicy
from api.safety.scans.rules import RuleEntry, Rules, TextRole, WordList
from api.safety.verdict import Category

RULES = Rules(
    [
        WordList(
            category=Category.VIOLENCE,
            entries=[RuleEntry(score=0.9, terms=["pipe bomb"]), RuleEntry(score=0.3, terms=["knife"])],
        )
    ]
)
MASKS: dict[PersonalKind, OnPersonalData] = {"email": OnPersonalData.MASK, "card": OnPersonalData.MASK}
WORDS = st.lists(st.sampled_from(["pipe", " ", "bomb", "knife ", "a@b.org", "4111 1111 ", "1111 1111", "word "]))


def policy(guard: Runs = Runs.NEVER, *, is_live: bool = False) -> Policy:
    return Policy(personal_data_out=MASKS, stages={SafetyStage.GUARD: StagePolicy(runs=guard)}, is_live=is_live)


def screen(of: Policy) -> AnswerScreen:
    return AnswerScreen(judged_text(of, None, TextRole.ANSWER, RULES, None), of, True, lambda text: [*text.encode()])


def pieces(text: str, length: int) -> Iterator[Piece]:
    """One token for each byte, the log probability of which is the token itself."""
    parts = [text[at : at + length] for at in range(0, len(text), length)] or [""]
    for number, part in enumerate(parts):
        tokens = [*part.encode()]
        yield Piece(part, tokens, [*tokens], "stop" if number == len(parts) - 1 else None)


def run(screened: AnswerScreen, parts: Sequence[Piece], guard_blocks: str = "\0") -> list[Piece]:
    """All that leaves, with a guard that blocks windows that contain a text."""
    left: list[Piece] = []
    for part in parts:
        left += screened.put(part)
        while (window := screened.window()) is not None:
            left += screened.judge_window(window, guard_blocks in window.text)
    return left


def text_of(left: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in left)


@pytest.mark.parametrize("length", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "shown", "end"),
    [
        ("All is well.", "All is well.", "stop"),
        ("First a pipe bomb, then", "First a ", CUT),
        ("Mail ann@example.org, please", "Mail [EMAIL], please", "stop"),
        ("ann@example.org has a pipe bomb", "[EMAIL] has a ", CUT),
        ("", "", "stop"),
    ],
)
def test_what_leaves(text: str, shown: str, end: str, length: int) -> None:
    left = run(screen(policy()), [*pieces(text, length)])
    assert (text_of(left), left[-1].finish_reason) == (shown, end)
    assert [piece.finish_reason for piece in left[:-1]] == [None] * (len(left) - 1)


@given(WORDS, st.integers(1, 9))
def test_parts_change_nothing_and_tokens_say_no_more_than_the_text(words: list[str], length: int) -> None:
    text = "".join(words)
    left = run(screen(policy()), [*pieces(text, length)])
    assert text_of(left) == text_of(run(screen(policy()), [*pieces(text, len(text) or 1)]))
    for piece in left:
        assert bytes(piece.token_ids).decode() in (piece.text, "")
        assert piece.logprobs is not None
        assert all(known in (None, token) for known, token in zip(piece.logprobs, piece.token_ids, strict=True))


@given(WORDS, st.integers(1, 9), st.sampled_from([Runs.ALWAYS, Runs.IN_DOUBT]))
def test_guard_that_clears_everything_changes_nothing(words: list[str], length: int, runs: Runs) -> None:
    text = " ".join(words) * 9
    left = run(screen(policy(runs)), [*pieces(text, length)])
    assert text_of(left) == text_of(run(screen(policy()), [*pieces(text, length)]))


@given(st.integers(0, 3 * WINDOW_LENGTH), st.integers(1, 300))
def test_nothing_of_a_window_leaves_before_the_guard_has_seen_it(before: int, length: int) -> None:
    text = "x " * (before // 2) + "secret " + "y " * 200
    left = text_of(run(screen(policy(Runs.ALWAYS)), [*pieces(text, length)], "secret"))
    assert text.startswith(left)
    assert "secret" not in left
    assert len(left) % WINDOW_LENGTH == 0
    assert len(left) >= before - WINDOW_LENGTH


def test_guard_is_asked_in_doubt_alone() -> None:
    calm, doubtful = screen(policy(Runs.IN_DOUBT)), screen(policy(Runs.IN_DOUBT))
    for piece in pieces("word " * 200, 5):
        assert text_of(calm.put(piece)) in (piece.text, piece.text[1:], " " + piece.text)
        assert calm.window() is None
    left = "".join(text_of(doubtful.put(piece)) for piece in pieces("a knife " + "word " * 200, 5))
    window = doubtful.window()
    assert window is not None
    assert left in ("a knife", "a ", "")
    assert window.text.startswith("a knife")
    assert doubtful.window() is None  # one at a time


def test_live_answers_do_not_wait_for_the_guard() -> None:
    screened = screen(policy(Runs.ALWAYS, is_live=True))
    left = [piece for part in pieces("word " * 100, 5) for piece in screened.put(part)]
    assert text_of(left).startswith("word " * 90)


def test_late_verdict_of_a_live_answer_ends_it() -> None:
    screened = screen(policy(Runs.ALWAYS, is_live=True))
    for part in [*pieces("word " * 100, 5)][:-1]:
        screened.put(part)
    window = screened.window()
    assert window is not None
    (end,) = screened.judge_window(window, True)
    assert (end.text, end.finish_reason, screened.is_cut) == ("", CUT, True)
    assert screened.put(Piece("more", [1])) == []

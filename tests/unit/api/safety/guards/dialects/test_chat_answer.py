"""What a guard model was likely to say is read from the log probabilities of its answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.guards.dialects.chat_answer import QUESTION, ChatAnswer, chat_request, likelihoods
from api.safety.guards.dialects.dialect import GuardNonsense
from tests.unit.api.safety.guards.dialects.answers import BROKEN_BODIES, a_chat, a_token

VERDICTS = ("unsafe", "safe")


@pytest.mark.parametrize("body", [*BROKEN_BODIES, a_chat(None), a_chat(["safe"]), a_chat("safe", [{"token": 1}])])
def test_broken_answer_is_nonsense(body: bytes) -> None:
    with pytest.raises(GuardNonsense):
        ChatAnswer(body)


def test_several_choices_are_nonsense() -> None:
    body = json.loads(a_chat("safe"))
    with pytest.raises(GuardNonsense):
        ChatAnswer(json.dumps({"choices": body["choices"] * 2}).encode())


def test_blank_tokens_before_the_verdict_do_not_count() -> None:
    answer = ChatAnswer(
        a_chat("\n\nsafe", [a_token({"\n\n": 0.9, "unsafe": 0.1}), a_token({"safe": 0.8, "unsafe": 0.2})])
    )
    likely = likelihoods(answer.alternatives(), VERDICTS)
    assert likely == pytest.approx([0.2, 0.8])


def test_verdict_is_looked_for_after_its_label() -> None:
    tokens = [a_token({"Safety": 1.0}), a_token({":": 1.0}), a_token({" Safe": 0.7, " Unsafe": 0.3})]
    likely = likelihoods(ChatAnswer(a_chat("Safety: Safe", tokens)).alternatives(after="safety:"), VERDICTS)
    assert likely == pytest.approx([0.3, 0.7])


def test_parts_of_words_count_for_them() -> None:
    tokens = [a_token({"un": 0.5, "u": 0.1, "s": 0.2, "I": 0.2})]
    likely = likelihoods(ChatAnswer(a_chat("unsafe", tokens)).alternatives(), VERDICTS)
    assert likely == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("tokens", [None, [], [a_token({"\n": 1.0})], [a_token({"I": 0.6, "We": 0.4})]])
def test_nothing_is_likely_without_log_probabilities_of_the_verdict(tokens: list[object] | None) -> None:
    assert likelihoods(ChatAnswer(a_chat("safe", tokens)).alternatives(), VERDICTS) is None


@given(st.dictionaries(st.sampled_from(["safe", " Safe", "un", "unsafe", "", "x", "\n"]), st.floats(allow_nan=False)))
def test_likelihoods_are_probabilities_whatever_the_endpoint_says(alternatives: dict[str, float]) -> None:
    likely = likelihoods(alternatives, VERDICTS)
    assert likely is None or (sum(likely) == pytest.approx(1) and min(likely) >= 0)


def test_answer_is_judged_as_the_last_turn() -> None:
    fields = chat_request("m", "a\nb", is_answer=True).fields
    assert fields["messages"] == [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "> a\n> b"}]
    assert fields["temperature"] == 0 and fields["logprobs"] is True

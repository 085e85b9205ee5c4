"""Responses of a running service: real engines, a real PostgreSQL, the official client in strict mode."""

import openai
import pytest

from tests.component.openai_objects import first_text_of

QUESTION = "What is the capital of France?"


def test_streamed_turns_of_a_conversation_follow_each_other(strict: openai.OpenAI, model: str) -> None:
    conversation = strict.conversations.create()
    said = []
    for question in (QUESTION, "And of Italy?"):
        stream = strict.responses.create(
            model=model, input=question, conversation=conversation.id, temperature=0, max_output_tokens=40, stream=True
        )
        events = list(stream)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response == strict.responses.retrieve(last.response.id)
        said += [question, last.response.output_text]
    kept = [first_text_of(item) for item in strict.conversations.items.list(conversation.id, order="asc")]
    assert kept == said
    assert "Paris" in said[1]


def test_next_turn_reuses_what_the_turn_before_has_computed(strict: openai.OpenAI, model: str) -> None:
    first = strict.responses.create(model=model, input=QUESTION + " Tell me more." * 20, temperature=0)
    second = strict.responses.create(model=model, input=QUESTION, previous_response_id=first.id, temperature=0)
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens // 32 * 32 - 32


def test_answer_that_is_cut_is_incomplete(strict: openai.OpenAI, model: str) -> None:
    answer = strict.responses.create(model=model, input=QUESTION, max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"


def test_prompt_that_is_too_long_is_refused(strict: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        strict.responses.create(model=model, input="long " * 5000)
    assert caught.value.code == "context_length_exceeded"

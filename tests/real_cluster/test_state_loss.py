"""What was said survives whoever dies while it is said: the ingress, and PostgreSQL."""

import signal
import time
from typing import Any

import openai
import psutil
import pytest
from openai.types.conversations import Message

from tests.component.openai_objects import first_text_of
from tests.expected import of_kind
from tests.real_cluster.postgres_loss import postgres_away
from tests.real_cluster.service import INGRESS_PROCESS, Service, wait_for

AWAY_S = 10.0
FREE_WITHIN_S = 90.0
"""An ingress comes back, and the lease of what its predecessor generated runs out."""
QUESTION = "Count."
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 500}
SCHEMA = {"type": "object", "properties": {"numbers": NUMBERS}, "required": ["numbers"]}
LONG: Any = {
    "input": QUESTION,
    "max_output_tokens": 2000,
    "stream": True,
    "text": {"format": {"type": "json_schema", "name": "numbers", "schema": SCHEMA}},
}
"""Some ten seconds of decoding on this machine, and more."""


def test_killed_ingress_leaves_what_it_has_told(service: Service, strict: openai.OpenAI, model: str) -> None:
    conversation = strict.conversations.create()
    stream = strict.responses.create(model=model, conversation=conversation.id, **LONG)
    seen = [event for event, _ in zip(stream, range(30), strict=False)]
    service.process(INGRESS_PROCESS).kill()
    wait_for(lambda: is_over(strict, seen[0].response.id), FREE_WITHIN_S)
    found = strict.responses.retrieve(seen[0].response.id)
    assert (found.status, found.error and found.error.code) == ("failed", "server_error")
    assert found.output_text.startswith("".join(event.delta for event in seen if event.type.endswith("text.delta")))
    answer, question = strict.conversations.items.list(conversation.id).data
    assert (of_kind(Message, answer).status, first_text_of(question)) == ("incomplete", QUESTION)
    again = list(strict.responses.retrieve(found.id, stream=True))
    assert [event.sequence_number for event in again] == list(range(len(again)))
    assert again[: len(seen)] == seen and again[-1].type == "response.failed"
    service.wait_until_whole()
    strict.responses.create(model=model, input="And then?", conversation=conversation.id, max_output_tokens=5)
    assert len(strict.conversations.items.list(conversation.id).data) == 4


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "is killed"])
def test_turn_does_not_care_for_a_database_that_is_away(
    service: Service, strict: openai.OpenAI, model: str, fault: signal.Signals
) -> None:
    conversation = strict.conversations.create()
    stream = iter(strict.responses.create(model=model, conversation=conversation.id, **LONG))
    events = [next(stream) for _ in range(30)]
    with postgres_away(service, fault):
        until = time.monotonic() + AWAY_S
        for event in stream:
            events.append(event)
            if time.monotonic() > until:
                break
        assert len(events) > 40, "the stream has stood still"
        assert strict.responses.create(model=model, input="Hello", store=False, max_output_tokens=5).output_text
    events += stream
    assert [event.sequence_number for event in events] == list(range(len(events)))
    told = events[-1].response
    wait_for(lambda: is_over(strict, told.id), FREE_WITHIN_S)
    found = strict.responses.retrieve(told.id)
    assert (found.status, found.output_text) == (told.status, told.output_text)
    assert len(strict.conversations.items.list(conversation.id).data) == 2


def test_redis_is_a_help_and_no_more(service: Service, strict: openai.OpenAI, model: str) -> None:
    conversation = strict.conversations.create()
    stream = iter(strict.responses.create(model=model, conversation=conversation.id, **LONG))
    first = next(stream)
    killed = service.redis()
    killed.kill()
    events = [first, *stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert strict.responses.retrieve(first.response.id) == events[-1].response
    wait_for(lambda: _is_replaced(service, killed), FREE_WITHIN_S)


def _is_replaced(service: Service, killed: psutil.Process) -> bool:
    try:
        return service.redis() != killed
    except ValueError:
        return False


def is_over(client: openai.OpenAI, response: str) -> bool:
    """False while nobody can be asked."""
    try:
        return client.responses.retrieve(response).status not in ("queued", "in_progress")
    except (openai.InternalServerError, openai.APIConnectionError):
        return False

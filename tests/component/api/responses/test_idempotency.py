"""Requests that are sent again find the response of the first try."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, ConflictError, RateLimitError

from api.identity.access import Access
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS, Right
from api.responses import idempotency
from api.state.lifecycle import ChatState
from cluster.errors import TooManyRequests
from tests.component.answering import Model, texts
from tests.component.api.responses.streams import cut_after, numbers
from tests.component.app_with_postgres import ClientOf, clients_of


async def tried(client: AsyncOpenAI, number: int, **request: Any) -> Any:
    """As the official client tries by itself after a connection error."""
    headers = {"x-stainless-retry-count": str(number)}
    return await client.responses.create(model="m", input="Hello", extra_headers=headers, **request)


async def test_retry_finds_the_response_that_is_being_generated(client: AsyncOpenAI, model: Model) -> None:
    model.may_go_on.clear()
    conversation = await client.conversations.create()
    first, _ = await cut_after(client, 3, conversation=conversation.id)
    stream = await tried(client, 1, conversation=conversation.id, stream=True)
    model.may_go_on.set()
    events = [event async for event in stream]
    assert {event.response.id for event in events if hasattr(event, "response")} == {first}
    assert numbers(events) == list(range(len(events))) and len(model.bodies) == 1
    assert await texts(client, conversation.id) == ["Hello", "Answer 1"]


async def test_retry_without_a_stream_waits_for_the_whole(
    client: AsyncOpenAI, model: Model, elsewhere: AsyncOpenAI
) -> None:
    model.may_go_on.clear()
    asked = asyncio.create_task(client.responses.create(model="m", input="Hello"))
    await model.asked(1)
    asked.cancel()
    again = asyncio.create_task(tried(elsewhere, 2))
    model.may_go_on.set()
    assert (await again).output_text == "Answer 1"
    assert len(model.bodies) == 1


async def test_same_request_that_is_no_retry_is_another(client: AsyncOpenAI, model: Model) -> None:
    one = await client.responses.create(model="m", input="Hello")
    other = await client.responses.create(model="m", input="Hello")
    assert one.id != other.id and len(model.bodies) == 2


async def test_retry_after_a_refusal_is_tried(client: AsyncOpenAI, model: Model) -> None:
    model.error = TooManyRequests("busy", 3.0)
    with pytest.raises(RateLimitError):
        await client.responses.create(model="m", input="Hello", extra_headers={"Idempotency-Key": "k"})
    model.error = None
    assert (await tried(client, 1)).output_text == "Answer 2"
    keyed = await client.responses.create(model="m", input="Hello again", extra_headers={"Idempotency-Key": "k"})
    assert keyed.output_text == "Answer 3"


async def test_idempotency_key_gives_the_first_answer_and_belongs_to_one_request(
    client: AsyncOpenAI, clients: ClientOf, model: Model
) -> None:
    key = {"Idempotency-Key": "k"}
    first = await client.responses.create(model="m", input="Hello", extra_headers=key)
    assert await client.responses.create(model="m", input="Hello", extra_headers=key) == first
    assert len(model.bodies) == 1
    with pytest.raises(ConflictError) as caught:
        await client.responses.create(model="m", input="Other", extra_headers=key)
    assert caught.value.code == "idempotency_key_conflict"
    assert (await clients("sk-bob").responses.create(model="m", input="Other", extra_headers=key)).id != first.id


async def test_try_that_was_refused_while_another_one_waited_for_it_is_to_be_tried_again(
    client: AsyncOpenAI, model: Model, elsewhere: AsyncOpenAI
) -> None:
    model.may_go_on.clear()
    model.error = TooManyRequests("busy", 3.0)
    first = asyncio.create_task(client.responses.create(model="m", input="Hello"))
    await model.asked(1)
    second = asyncio.create_task(tried(elsewhere, 1))
    for _ in range(20):
        await asyncio.sleep(0.01)
    model.may_go_on.set()
    with pytest.raises(RateLimitError):
        await first
    with pytest.raises(ConflictError):
        await second


async def test_later_request_that_is_the_same_gets_an_answer_of_its_own(
    client: AsyncOpenAI, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await client.responses.create(model="m", input="Hello")
    assert (await tried(client, 1)).id == first.id
    monkeypatch.setattr(idempotency, "ATTACHED_WITHIN_S", 0.0)
    assert (await tried(client, 1)).id != first.id


def a_sender(**fields: Any) -> Principal:
    rights = ALL_RIGHTS - {Right.STATE_READ}
    return Principal(**({"tenant": "t", "project": "proj_1", "key": "", "rights": rights} | fields))


SENDERS = {
    "first": a_sender(key="key_1", key_lineage="key_1"),
    "rotated": a_sender(key="key_2", key_lineage="key_1"),
    "of-another-team": a_sender(key="key_3", key_lineage="key_3"),
    "of-another-project": a_sender(project="proj_2", key="key_4", key_lineage="key_4"),
    "token-of-a-user": a_sender(end_user="key_1"),
    "token-of-another-user": a_sender(end_user="u"),
}


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k"}, {"x-stainless-retry-count": "1"}])
async def test_retry_with_another_credential_shows_no_response_of_the_first(
    state: ChatState, model: Model, headers: dict[str, str]
) -> None:
    """Not even one of the same tenant: it may not be allowed to read the response. A rotated key goes on."""

    async def identify(credential: str) -> Principal:
        return SENDERS[credential]

    async with clients_of(state, model, access=Access(identify, is_required=True)) as clients:
        answers = {
            sender: (await clients(sender).responses.create(model="m", input="Hello", extra_headers=headers)).id
            for sender in SENDERS
        }
    assert answers["first"] == answers["rotated"]
    assert len(set(answers.values())) == len(model.bodies) == len(SENDERS) - 1

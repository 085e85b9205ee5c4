"""Responses in the background, and those that are cancelled."""

import asyncio

import openai
import pytest
from openai import BadRequestError, NotFoundError
from openai.types.responses import ResponseOutputMessage

from api.responses import turn_generation
from cluster.errors import QuotaExceeded, RateLimited, ServingError, TooManyRequests
from tests.component.answering import Model
from tests.component.api.responses.streams import resumed
from tests.component.app_with_postgres import ClientOf
from tests.component.openai_objects import response_of
from tests.expected import of_kind, present


async def test_background_response_is_there_before_it_is_generated(client: openai.AsyncOpenAI, model: Model) -> None:
    model.may_go_on.clear()
    made = await client.responses.create(model="m", input="Hello", background=True)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    waiting = asyncio.create_task(resumed(client, made.id))
    model.may_go_on.set()
    events = await waiting
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    found = await client.responses.retrieve(made.id)
    assert (found.status, found.output_text) == ("completed", "Answer 1")


async def test_background_response_waits_for_workers(
    client: openai.AsyncOpenAI, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_generation, "MAX_BACKGROUND_WAIT_S", 0.02)
    model.error = TooManyRequests("busy", 3.0)
    made = await client.responses.create(model="m", input="Hello", background=True)
    waiting = asyncio.create_task(resumed(client, made.id))
    await model.asked(2)
    assert (await client.responses.retrieve(made.id)).status == "queued"
    model.error = None
    assert (await waiting)[-1].type == "response.completed"


@pytest.mark.parametrize(
    "refusal",
    [RateLimited("this key has no room", "requests", 0.0, {}), QuotaExceeded("the budget of this key is spent")],
    ids=["a limit", "a budget"],
)
async def test_background_response_that_a_limit_has_no_room_for_has_failed(
    client: openai.AsyncOpenAI, model: Model, refusal: ServingError
) -> None:
    model.error = refusal
    made = await client.responses.create(model="m", input="Hello", background=True)
    assert (await resumed(client, made.id))[-1].type == "response.failed"
    error = present((await client.responses.retrieve(made.id)).error)
    assert (error.code, error.message) == ("rate_limit_exceeded", str(refusal))
    assert len(model.bodies) == 1


async def test_background_response_that_cannot_be_generated_has_failed(
    client: openai.AsyncOpenAI, model: Model
) -> None:
    model.error = RuntimeError("a bug")
    made = await client.responses.create(model="m", input="Hello", background=True)
    assert (await resumed(client, made.id))[-1].type == "response.failed"
    assert present((await client.responses.retrieve(made.id)).error).code == "server_error"


async def test_background_response_must_be_stored(client: openai.AsyncOpenAI, model: Model) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="m", input="Hello", background=True, store=False)
    assert caught.value.param == "background" and not model.bodies


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_cancelled_response_keeps_what_was_generated(
    client: openai.AsyncOpenAI, elsewhere: openai.AsyncOpenAI, model: Model, where: str
) -> None:
    model.may_go_on.clear()
    made = await client.responses.create(model="m", input="Hello", background=True)
    stream = await client.responses.retrieve(made.id, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    cancelled = await (client if where == "here" else elsewhere).responses.cancel(made.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "Answer ")
    assert of_kind(ResponseOutputMessage, cancelled.output[0]).status == "incomplete"
    *_, last = [event async for event in stream]
    assert response_of(last).status == "cancelled"
    assert await client.responses.cancel(made.id) == cancelled


async def test_only_background_responses_can_be_cancelled(client: openai.AsyncOpenAI, clients: ClientOf) -> None:
    made = await client.responses.create(model="m", input="Hello")
    with pytest.raises(BadRequestError):
        await client.responses.cancel(made.id)
    for who, response in ((client, "resp_x"), (clients("sk-bob"), made.id)):
        with pytest.raises(NotFoundError):
            await who.responses.cancel(response)

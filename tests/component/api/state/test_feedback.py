"""Feedback over HTTP, in a real PostgreSQL."""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import psycopg
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from api.frontend.generation import Call
from api.state.lifecycle import ChatState
from tests.component.app_with_fakes import FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.unit.chat_chunks import answer

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


class Model(FakeFrontend):
    """Answers chats with a body, and responses with a stream."""

    async def chat_completion(self, body: Any, call: Call) -> Any:
        message = {"role": "assistant", "content": "Hi", "refusal": None}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
        if body.get("stream"):
            self.answer = [f"data: {msgspec.json.encode(chunk).decode()}\n\n" for chunk in answer("Hi")]
        else:
            head = {"id": f"chatcmpl-{call.id}", "object": "chat.completion", "created": 1, "model": body["model"]}
            self.answer = {**head, "choices": choices}
        return self._answered("chat", body, call)


@pytest.fixture
async def clients(state: ChatState) -> AsyncIterator[ClientOf]:
    async with clients_of(state, Model()) as found:
        yield found


@pytest.fixture
def client(clients: ClientOf) -> AsyncOpenAI:
    return clients("sk-alice")


async def a_response(client: AsyncOpenAI) -> Any:
    return await client.responses.create(model="m", input="Hello")


async def a_completion(client: AsyncOpenAI) -> Any:
    return await client.chat.completions.create(model="m", messages=HELLO, store=True)


async def said(client: AsyncOpenAI, response_id: str, rating: Any = 1, **fields: Any) -> dict[str, Any]:
    body = {"response_id": response_id, "rating": rating} | fields
    return await client.post("/feedback", cast_to=dict[str, Any], body=body)


async def listed(client: AsyncOpenAI, **query: Any) -> dict[str, Any]:
    return await client.get("/feedback", cast_to=dict[str, Any], options={"params": query})


async def ids(client: AsyncOpenAI, **query: Any) -> list[str]:
    return [one["id"] for one in (await listed(client, **query))["data"]]


@pytest.mark.parametrize("made_by", [a_response, a_completion])
async def test_feedback_is_what_was_said(
    client: AsyncOpenAI, made_by: Callable[[AsyncOpenAI], Coroutine[Any, Any, Any]]
) -> None:
    made = await made_by(client)
    told = await said(client, made.id, -1, labels=["wrong", "rude", "wrong"], comment="It was not Paris.", user="ann")
    assert told["id"].startswith("fb_") and told["created_at"] > 0
    assert told == {
        "id": told["id"],
        "object": "feedback",
        "created_at": told["created_at"],
        "response_id": made.id,
        "item_id": None,
        "user": "ann",
        "rating": -1,
        "labels": ["wrong", "rude"],
        "comment": "It was not Paris.",
    }
    assert await listed(client) == {
        "object": "list",
        "data": [told],
        "first_id": told["id"],
        "last_id": told["id"],
        "has_more": False,
    }


async def test_feedback_may_be_about_an_item_of_the_response(client: AsyncOpenAI) -> None:
    response = await a_response(client)
    (item,) = response.output
    assert (await said(client, response.id, item_id=item.id))["item_id"] == item.id
    other = await a_response(client)
    for subject in (other, await a_completion(client)):
        with pytest.raises(NotFoundError) as caught:
            await said(client, subject.id, item_id=item.id)
        assert caught.value.code == "item_not_found"


@pytest.mark.parametrize(("given", "told"), [(1, 1), (-1, -1), ("up", 1), ("down", -1)])
async def test_rating_may_be_a_word(client: AsyncOpenAI, given: int | str, told: int) -> None:
    assert (await said(client, (await a_response(client)).id, given))["rating"] == told


@pytest.mark.parametrize("made_by", [a_response, a_completion])
async def test_second_word_of_a_user_replaces_the_first(
    client: AsyncOpenAI, made_by: Callable[[AsyncOpenAI], Coroutine[Any, Any, Any]]
) -> None:
    made = await made_by(client)
    nobody = await said(client, made.id, "up", comment="Good")
    ann = await said(client, made.id, "up", user="ann")
    again = await said(client, made.id, "down", labels=["rude"])
    assert (again["id"], again["rating"], again["labels"], again["comment"]) == (nobody["id"], -1, ["rude"], None)
    assert await ids(client, response_id=made.id) == [ann["id"], again["id"]]


async def test_feedback_is_listed_and_selected(client: AsyncOpenAI, clients: ClientOf) -> None:
    one, other = await a_response(client), await a_completion(client)
    first = (await said(client, one.id, 1, user="a"))["id"]
    second = (await said(client, one.id, -1, user="b"))["id"]
    third = (await said(client, other.id, -1, user="a"))["id"]
    await said(clients("sk-bob"), (await a_response(clients("sk-bob"))).id)
    assert await ids(client) == [third, second, first]
    assert await ids(client, order="asc") == [first, second, third]
    assert await ids(client, response_id=one.id) == [second, first]
    assert await ids(client, response_id=other.id) == [third]
    assert await ids(client, rating=-1) == await ids(client, rating="down") == [third, second]
    assert await ids(client, after=third, limit=1) == [second]
    assert (await listed(client, limit=2))["has_more"]


async def test_deleted_feedback_is_gone(client: AsyncOpenAI) -> None:
    told = await said(client, (await a_response(client)).id)
    gone = await client.delete(f"/feedback/{told['id']}", cast_to=object)
    assert gone == {"id": told["id"], "object": "feedback.deleted", "deleted": True}
    assert await ids(client) == []
    with pytest.raises(NotFoundError) as caught:
        await client.delete(f"/feedback/{told['id']}", cast_to=object)
    assert caught.value.code == "feedback_not_found"


async def test_feedback_goes_with_what_it_is_about(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    in_conversation = await client.responses.create(model="m", input="Hello", conversation=conversation.id)
    response, completion = await a_response(client), await a_completion(client)
    kept = await a_response(client)
    for subject in (in_conversation, response, completion, kept):
        await said(client, subject.id)
    await client.responses.delete(response.id)
    await client.chat.completions.delete(completion.id)
    await client.conversations.delete(conversation.id)
    assert [one["response_id"] for one in (await listed(client))["data"]] == [kept.id]


async def test_response_that_is_not_stored_is_not_found(client: AsyncOpenAI, clients: ClientOf) -> None:
    theirs = await a_response(clients("sk-bob"))
    forgotten = await client.responses.create(model="m", input="Hello", store=False)
    for unknown in (theirs.id, forgotten.id, "resp_x"):
        with pytest.raises(NotFoundError) as caught:
            await said(client, unknown)
        assert caught.value.code == "response_not_found"


async def test_another_tenants_feedback_is_not_found(client: AsyncOpenAI, clients: ClientOf) -> None:
    told = await said(client, (await a_response(client)).id)
    other = clients("sk-bob")
    for ask in (other.delete(f"/feedback/{told['id']}", cast_to=object), listed(other, after=told["id"])):
        with pytest.raises(NotFoundError):
            await ask
    assert await ids(client) == [told["id"]]


async def test_comments_are_encrypted_at_rest(client: AsyncOpenAI, postgres: str) -> None:
    await said(client, (await a_response(client)).id, comment="a private matter")
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT * FROM feedback").fetchall() == []
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        ((comment,),) = connection.execute("SELECT comment FROM feedback").fetchall()
    assert b"private" not in comment


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_id": None}, "response_id", "missing_required_parameter"),
        ({"response_id": 1}, "response_id", "invalid_type"),
        ({"rating": None}, "rating", "invalid_value"),
        ({"rating": 0}, "rating", "invalid_value"),
        ({"rating": True}, "rating", "invalid_value"),
        ({"rating": "+1"}, "rating", "invalid_value"),
        ({"labels": "rude"}, "labels", "invalid_type"),
        ({"labels": [1]}, "labels", "invalid_type"),
        ({"labels": [""]}, "labels", "invalid_value"),
        ({"labels": ["x" * 65]}, "labels", "invalid_value"),
        ({"labels": [str(n) for n in range(17)]}, "labels", "array_above_max_length"),
        ({"comment": 1}, "comment", "invalid_type"),
        ({"comment": "x" * 10_001}, "comment", "string_above_max_length"),
        ({"item_id": []}, "item_id", "invalid_type"),
        ({"user": 1}, "user", "invalid_value"),
        ({"colour": "red"}, "colour", "unknown_parameter"),
    ],
)
async def test_bad_input_is_told_where_it_is_bad(
    client: AsyncOpenAI, fields: dict[str, Any], param: str, code: str
) -> None:
    body = {"response_id": "resp_x", "rating": 1} | fields
    with pytest.raises(BadRequestError) as caught:
        await client.post("/feedback", cast_to=object, body=body)
    assert (caught.value.param, caught.value.code) == (param, code)


async def test_text_that_cannot_be_stored_is_refused(client: AsyncOpenAI) -> None:
    response = await a_response(client)
    for fields in ({"labels": ["\0"]}, {"user": "\0"}, {"item_id": "\0"}, {"response_id": "\0"}):
        with pytest.raises(BadRequestError):
            await client.post("/feedback", cast_to=object, body={"response_id": response.id, "rating": 1} | fields)


@pytest.mark.parametrize("query", [{"rating": "good"}, {"limit": 0}, {"order": "up"}])
async def test_bad_pages_are_refused(client: AsyncOpenAI, query: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        await listed(client, **query)

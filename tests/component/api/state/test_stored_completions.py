"""Stored chat completions over HTTP, in a real PostgreSQL, with the official client in strict mode; the model is a
stand-in.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
import psycopg
import pytest
from openai import APIError, AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from api.completions import store_writer
from api.frontend.generation import Call
from api.state.lifecycle import ChatState
from api.state.stores import Stores
from cluster.errors import StateUnavailable
from tests.component.app_with_fakes import FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.expected import of_kind, present
from tests.unit.chat_chunks import Chunk, answer, chunk, usage

HELLO: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
NESTED: list[Any] = []
for _ in range(300):
    NESTED = [NESTED]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class Model(FakeFrontend):
    """Answers "Answer 1", "Answer 2" and so on, streamed or not. A stream goes on, and ends, when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.ends_with: list[Chunk] | None = None
        """In place of the rest of a stream."""
        self.is_left = asyncio.Event()

    async def chat_completion(self, body: Any, call: Call) -> dict[str, Any] | AsyncGenerator[str, None]:
        self.bodies.append(("chat", body))
        self.terms.append(call.terms)
        name, text = f"chatcmpl-{call.id}", f"Answer {len(self.bodies)}"
        if body.get("stream"):
            return self._told(name, text, (body.get("stream_options") or {}).get("include_usage", False))
        message = {"role": "assistant", "content": text, "refusal": None, "tool_calls": None}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}]
        head = {"id": name, "object": "chat.completion", "created": 1, "model": body["model"], "service_tier": None}
        return {**head, "choices": choices, **{"usage": usage()["usage"]}}

    async def _told(self, name: str, text: str, with_usage: bool) -> AsyncGenerator[str, None]:
        role, *rest = answer(text)
        try:
            yield frame({**role, "id": name})
            await self.may_go_on.wait()
            for one in rest if self.ends_with is None else self.ends_with:
                if one.get("choices") or with_usage or "error" in one:
                    yield frame({**one, "id": name, "model": "m", "created": 1, "object": "chat.completion.chunk"})
            await self.may_end.wait()
            yield "data: [DONE]\n\n"
        finally:
            self.is_left.set()


def frame(chunk: Any) -> str:
    return f"data: {msgspec.json.encode(chunk).decode()}\n\n"


class Wavering:
    """A state that is there, or not."""

    def __init__(self, state: ChatState) -> None:
        self._state = state
        self.is_there = True
        self.max_item_bytes = state.max_item_bytes

    @property
    def stores(self) -> Stores:
        if not self.is_there:
            raise StateUnavailable("away", 1.0)
        return self._state.stores


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def clients(state: ChatState, model: Model) -> AsyncIterator[ClientOf]:
    async with clients_of(state, model) as found:
        yield found


@pytest.fixture
def client(clients: ClientOf) -> AsyncOpenAI:
    return clients("sk-alice")


async def asked(client: AsyncOpenAI, **options: Any) -> Any:
    request: dict[str, Any] = {"model": "m", "messages": HELLO, "store": True} | options
    return await client.chat.completions.create(**request)


async def ids(client: AsyncOpenAI, **query: Any) -> list[str]:
    return [found.id async for found in client.chat.completions.list(**query)]


async def test_completion_is_kept_as_it_was_answered(client: AsyncOpenAI) -> None:
    made = await asked(client, metadata={"topic": "demo"}, temperature=0.5, tools=[TOOL], user="ann")
    found = await client.chat.completions.retrieve(made.id)
    assert found.to_dict() == made.to_dict() | {
        "frequency_penalty": None,
        "input_user": "ann",
        "presence_penalty": None,
        "response_format": None,
        "seed": None,
        "temperature": 0.5,
        "tool_choice": None,
        "tools": [TOOL],
        "top_p": None,
    }
    assert (made.metadata, made.service_tier) == ({"topic": "demo"}, "default")


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
async def test_streamed_completion_is_kept_with_its_usage(client: AsyncOpenAI, options: dict[str, Any]) -> None:
    chunks = [part async for part in await asked(client, stream=True, metadata={"a": "b"}, **options)]
    assert [part.usage is not None for part in chunks] == [False] * 3 + [True] * len(options)
    found = await client.chat.completions.retrieve(chunks[0].id)
    assert {part.id for part in chunks} == {found.id}
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("Answer 1", "stop")
    assert (present(found.usage).total_tokens, found.metadata, found.service_tier) == (7, {"a": "b"}, "default")


async def test_nothing_is_kept_unless_it_is_asked_for(client: AsyncOpenAI, model: Model) -> None:
    for options in ({}, {"store": False}, {"store": None}):
        await client.chat.completions.create(model="m", messages=HELLO, metadata={"a": "b"}, **options)
    assert await ids(client) == []
    assert all("stream_options" not in body for _, body in model.bodies)


async def test_completions_are_listed_and_selected(client: AsyncOpenAI, clients: ClientOf) -> None:
    made = [await asked(client, model=f"m{n % 2}", metadata={"n": str(n), "all": "x"}, user=f"u{n}") for n in range(4)]
    await asked(clients("sk-bob"))
    first, second, third, fourth = (one.id for one in made)
    assert await ids(client) == await ids(client, limit=1) == [first, second, third, fourth]
    assert await ids(client, order="desc", limit=3) == [fourth, third, second, first]
    assert await ids(client, after=second) == [third, fourth]
    assert await ids(client, model="m1") == [second, fourth]
    assert await ids(client, metadata={"n": "2", "all": "x"}) == [third]
    assert await ids(client, extra_query={"user": "u3"}) == [fourth]


async def test_metadata_is_replaced(client: AsyncOpenAI) -> None:
    made = await asked(client, metadata={"topic": "demo", "mood": "good"})
    changed = await client.chat.completions.update(made.id, metadata={"topic": "other"})
    assert changed == await client.chat.completions.retrieve(made.id)
    assert (changed.metadata, changed.choices) == ({"topic": "other"}, made.choices)
    assert await ids(client, metadata={"topic": "demo"}) == []


async def test_deleted_completion_is_gone(client: AsyncOpenAI) -> None:
    made = await asked(client)
    gone = await client.chat.completions.delete(made.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    for ask in (
        client.chat.completions.retrieve(made.id),
        client.chat.completions.delete(made.id),
        client.chat.completions.update(made.id, metadata={}),
        client.get(f"/chat/completions/{made.id}/messages", cast_to=object),
    ):
        with pytest.raises(NotFoundError) as caught:
            await ask
        assert caught.value.code == "completion_not_found"


async def test_messages_are_those_that_it_answers(client: AsyncOpenAI) -> None:
    call: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    sent: list[Any] = [{"role": "assistant", "tool_calls": [call]}, {"role": "assistant", "content": "Hello"}]
    made = await asked(client, messages=sent)
    found = [message async for message in client.chat.completions.messages.list(made.id, limit=1)]
    assert [message.id for message in found] == [f"{made.id}-0", f"{made.id}-1"]
    made_call = of_kind(ChatCompletionMessageFunctionToolCall, present(found[0].tool_calls)[0])
    assert (made_call.function.name, found[1].content) == ("look", "Hello")
    newest = [message.id async for message in client.chat.completions.messages.list(made.id, order="desc", limit=1)]
    assert newest == [f"{made.id}-1", f"{made.id}-0"]
    with pytest.raises(NotFoundError):
        await client.chat.completions.messages.list(made.id, after="x")


async def test_messages_of_others_than_the_assistant_keep_their_role(client: AsyncOpenAI) -> None:
    made = await asked(client)
    lenient = client.with_options(_extra_kwargs={"_strict_response_validation": False})  # whose role is one's own
    found = [message async for message in lenient.chat.completions.messages.list(made.id)]
    assert [(message.role, message.content) for message in found] == [("system", "Be brief."), ("user", "Hello")]


async def test_another_tenants_completions_are_not_found(client: AsyncOpenAI, clients: ClientOf) -> None:
    made = await asked(client)
    other = clients("sk-bob").chat.completions
    for ask in (
        other.retrieve(made.id),
        other.update(made.id, metadata={}),
        other.delete(made.id),
        other.messages.list(made.id),
        other.list(after=made.id),
    ):
        with pytest.raises(NotFoundError):
            await ask
    assert await ids(client) == [made.id]


async def test_completion_whose_client_leaves_is_not_kept(client: AsyncOpenAI, model: Model) -> None:
    model.may_go_on.clear()
    stream = await asked(client, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await model.is_left.wait()
    assert await ids(client) == []


async def test_completion_whose_client_leaves_after_the_last_token_is_kept(client: AsyncOpenAI, model: Model) -> None:
    model.may_end.clear()
    stream = await asked(client, stream=True)
    async for part in stream:
        if part.choices[0].finish_reason:
            break
    await stream.close()
    for _ in range(1000):
        if await ids(client) == [part.id]:
            break
        await asyncio.sleep(0.01)
    assert (await client.chat.completions.retrieve(part.id)).choices[0].message.content == "Answer 1"


async def test_completion_that_fails_is_not_kept(client: AsyncOpenAI, model: Model) -> None:
    model.ends_with = [chunk(content="Ans"), {"error": {"message": "no", "type": "x", "param": None, "code": 500}}]
    with pytest.raises(APIError):
        [part async for part in await asked(client, stream=True)]
    assert await ids(client) == []


async def test_texts_are_encrypted_at_rest(client: AsyncOpenAI, postgres: str) -> None:
    await asked(client, messages=[{"role": "user", "content": "a private matter"}])
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT * FROM chat_completions").fetchall() == []
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        (row,) = connection.execute("SELECT body, messages FROM chat_completions").fetchall()
    assert not any(b"private" in text or b"Answer" in text for text in row)


@pytest.mark.parametrize("stream", [False, True])
async def test_completion_is_written_when_postgres_is_back(
    state: ChatState, model: Model, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(store_writer, "RETRY_S", 0.01)
    wavering: Any = Wavering(state)
    async with clients_of(wavering, model) as clients:
        client = clients("sk-alice")
        wavering.is_there = False
        for _ in range(3):
            answered = await asked(client, stream=stream)
            if stream:
                assert [part async for part in answered][-1].choices[0].finish_reason == "stop"
        with pytest.raises(InternalServerError):
            await client.chat.completions.list()
        wavering.is_there = True
    assert await texts_in(state) == ["Answer 1", "Answer 2", "Answer 3"]


async def test_completion_for_which_postgres_was_away_too_long_is_lost_and_logged(
    state: ChatState, model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_writer, "KEPT_FOR_S", 0.0)
    wavering: Any = Wavering(state)
    wavering.is_there = False
    async with clients_of(wavering, model) as clients:
        made = await asked(clients("sk-alice"))
        wavering.is_there = True
    assert f"{made.id} is lost" in caplog.text
    assert await texts_in(state) == []


async def texts_in(state: ChatState) -> list[str | None]:
    async with clients_of(state, FakeFrontend()) as clients:
        return [found.choices[0].message.content async for found in clients("sk-alice").chat.completions.list()]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"store": "yes"}, "store", "invalid_type"),
        ({"tools": NESTED}, "tools", "invalid_value"),
        ({"messages": NESTED}, "messages", "invalid_value"),
        ({"metadata": {"n": 1}}, "metadata", "invalid_type"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_properties"),
        ({"metadata": {"n" * 65: ""}}, f"metadata.{'n' * 64}", "string_above_max_length"),
        ({"metadata": {"n": "x" * 513}}, "metadata.n", "string_above_max_length"),
        ({"metadata": {"n": "\0"}}, "metadata", "invalid_value"),
        ({"user": 1}, "user", "invalid_value"),
        ({"user": "\0"}, "user", "invalid_value"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_generated(
    client: AsyncOpenAI, model: Model, fields: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.post("/chat/completions", cast_to=object, body={"model": "m", "store": True} | fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert not model.bodies


@pytest.mark.parametrize("body", [{}, {"metadata": []}, {"metadata": {"a": "\0"}}, {"model": "m"}])
async def test_bad_changes_are_refused(client: AsyncOpenAI, body: dict[str, Any]) -> None:
    made = await asked(client, metadata={"a": "b"})
    with pytest.raises(BadRequestError):
        await client.post(f"/chat/completions/{made.id}", cast_to=object, body=body)
    assert (await client.chat.completions.retrieve(made.id)).metadata == {"a": "b"}

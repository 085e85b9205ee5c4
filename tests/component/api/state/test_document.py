"""The whole surface, walked with the official clients, OpenAI's in strict mode, over vLLM's front half and a real
PostgreSQL: every kind of answer and of event passes, and follows OpenAI's document or Anthropic's models.
"""

import json
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from itertools import product
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from fastapi import FastAPI
from openai import APIError, AsyncOpenAI
from starlette.routing import Route

from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from api.state.postgres.ledger.ledger_store import LedgerStore
from cluster.config.state import StateConfig
from cluster.messages.generation import FinishReason
from tests.component.app_with_fakes import an_app
from tests.component.app_with_postgres import clients_of
from tests.component.emptied import emptied
from tests.component.fake_engines import END_OF_TURN, FakeEngines, with_logprobs
from tests.component.generations import (
    GENERATIONS,
    REASONING,
    TOOL_CALLS,
    WEATHER,
    Generation,
    fails_midway,
    refuses,
    tells_logprobs,
)
from tests.component.reached import reached
from tests.component.safety_folder import safety_in
from tests.component.socket_service import LAST
from tests.conformance import anthropic_models, ours
from tests.conformance.document import document
from tests.conformance.waivers import WAIVERS
from tests.conformance.watch import Record, watched
from tests.conformance.watched_socket import watched_connection
from tests.expected import present
from tests.unit.usage_rows import a_row

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
    pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning"),  # torch reads what was sent
    pytest.mark.asyncio(loop_scope="module"),
]

MODEL = "baton-demo"
USER: Any = {"role": "user", "content": "What is the weather in Paris?"}

EVENTS = {
    "ResponseCreatedEvent",
    "ResponseQueuedEvent",
    "ResponseInProgressEvent",
    "ResponseOutputItemAddedEvent",
    "ResponseContentPartAddedEvent",
    "ResponseTextDeltaEvent",
    "ResponseTextDoneEvent",
    "ResponseReasoningTextDeltaEvent",
    "ResponseReasoningTextDoneEvent",
    "ResponseFunctionCallArgumentsDeltaEvent",
    "ResponseFunctionCallArgumentsDoneEvent",
    "ResponseContentPartDoneEvent",
    "ResponseOutputItemDoneEvent",
    "ResponseCompletedEvent",
    "ResponseIncompleteEvent",
    "ResponseFailedEvent",
}


OF_SOCKETS = {
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "error",
}
"""Types of the messages that a WebSocket has: all those of a stream, but for responses in the background."""


async def chat(client: AsyncOpenAI, generation: Generation, stream: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if stream else {}
    if generation is tells_logprobs:
        options |= {"logprobs": True, "top_logprobs": 2}
    if generation in TOOL_CALLS:
        options["tools"] = [{"type": "function", "function": WEATHER}]
    await read(client.chat.completions.create(model=MODEL, messages=[USER], stream=stream, **options))


async def complete(client: AsyncOpenAI, generation: Generation, stream: bool) -> None:
    options: Any = {"logprobs": 2} if generation is tells_logprobs else {}
    if stream:
        client = lenient(client)
    await read(client.completions.create(model=MODEL, prompt="Paris", stream=stream, **options))


async def respond(client: AsyncOpenAI, generation: Generation, stream: bool) -> None:
    options: Any = {}
    if generation is tells_logprobs:
        options |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    if generation in TOOL_CALLS:
        options["tools"] = [{"type": "function", **WEATHER}]
    await read(client.responses.create(model=MODEL, input="Hello", stream=stream, **options))


async def echo(client: AsyncOpenAI, engines: FakeEngines) -> None:
    tokens = engines.tokenizer.encode("Paris is").ids
    for stream in (False, True):
        engines.says("Rome", FinishReason.LENGTH)
        first, *others = engines.deltas
        engines.deltas = [
            with_logprobs(first, END_OF_TURN, tokens),
            *(with_logprobs(delta, END_OF_TURN) for delta in others),
        ]
        options: Any = {"echo": True, "logprobs": 1, "stream": stream}
        await read(lenient(client).completions.create(model=MODEL, prompt=tokens, **options))
    engines.reset()


def lenient(client: AsyncOpenAI) -> AsyncOpenAI:
    """Its strict mode takes neither the chunks of a text completion nor the logprobs of a prompt."""
    return client.copy(_extra_kwargs={"_strict_response_validation": False})


async def read(answer: Any) -> None:
    whole = await answer
    if hasattr(whole, "__aiter__"):
        async for _ in whole:
            pass


async def listed(pages: Any) -> list[Any]:
    return [one async for one in pages]


async def refused(*asked: Any) -> None:
    for one in asked:
        with pytest.raises(APIError):
            await one


async def generate(client: AsyncOpenAI, engines: FakeEngines, generations: tuple[Generation, ...]) -> None:
    for generation, stream, ask in product(generations, (False, True), (chat, complete, respond)):
        engines.reset()
        generation(engines)
        is_error = generation is refuses or (generation is fails_midway and ask is not respond)
        with pytest.raises(APIError) if is_error else nullcontext():
            await ask(client, generation, stream)
    engines.reset()


async def converse(port: int, record: Record, engines: FakeEngines, generations: tuple[Generation, ...]) -> None:
    """The same generations on one WebSocket, stored and not."""
    connection = await watched_connection(port, record)
    tools: Any = [{"type": "function", **WEATHER}] if generations is TOOL_CALLS else None
    for generation, is_stored in product(generations, (False, True)):
        engines.reset()
        generation(engines)
        asked: Any = {"type": "response.create", "model": MODEL, "input": "Hello", "store": is_stored, "stream_id": "s"}
        asked |= {"tools": tools} if tools else {}
        if generation is tells_logprobs:
            asked |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        for message in (asked, asked | {"generate": False}, asked | {"model": "other"}, asked | {"unheard": 1}):
            await connection.send(json.dumps(message))
            while json.loads(await connection.recv())["type"] not in LAST:
                pass
    await connection.close()
    engines.reset()


async def write_messages(port: int, record: Record, engines: FakeEngines, generations: tuple[Generation, ...]) -> None:
    """The same generations by Anthropic's client."""
    asked: Any = {"model": MODEL, "messages": [USER]}
    http = watched(anthropic.DefaultAsyncHttpxClient(), record=record)
    other = anthropic.AsyncAnthropic(api_key="sk-alice", base_url=f"http://127.0.0.1:{port}", http_client=http)
    async with other.with_options(max_retries=0) as messages:
        options: Any = {"max_tokens": 64}
        if generations is TOOL_CALLS:
            options["tools"] = [{"name": "weather", "input_schema": {"type": "object", "properties": {}}}]
        for generation, stream in product([one for one in generations if one is not tells_logprobs], (False, True)):
            engines.reset()
            generation(engines)
            is_error = generation in (refuses, fails_midway)
            with pytest.raises(anthropic.APIError) if is_error else nullcontext():
                await read(messages.messages.create(stream=stream, **asked, **options))
        engines.reset()
        await messages.messages.count_tokens(**asked)
        wrong: Any = [{"role": "user", "content": 5}]
        for path, body in (("", {"max_tokens": 0}), ("", {"messages": wrong}), ("/count_tokens", {"model": "other"})):
            with pytest.raises(anthropic.APIStatusError):
                await messages.post(f"/v1/messages{path}", cast_to=object, body={**asked, **options, **body})


async def look_around(client: AsyncOpenAI) -> None:
    await listed(client.models.list())
    await client.models.retrieve(MODEL)
    await refused(
        client.models.retrieve("other"),
        client.chat.completions.create(model=MODEL, messages=[USER], temperature=-1),
        client.responses.create(model="other", input="Hello"),
        client.get("/nothing", cast_to=object),
    )


async def remember(client: AsyncOpenAI) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "auto"}]},
        {"role": "assistant", "content": "Hi"},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Rain."}]},
    ]
    kept = (await client.conversations.create(metadata={"topic": "demo"})).id
    await listed(client.conversations.items.list(kept))
    await client.conversations.items.create(kept, items=items)
    found = await listed(client.conversations.items.list(kept, limit=2))
    await client.conversations.items.retrieve(found[0].id, conversation_id=kept)
    await client.conversations.items.delete(found[0].id, conversation_id=kept)
    await client.conversations.update(kept, metadata={})
    await client.conversations.retrieve(kept)
    await client.get("/conversations", cast_to=object)
    await client.conversations.delete(kept)
    await refused(client.conversations.retrieve(kept), client.post("/conversations", cast_to=object, body=[]))


async def follow(client: AsyncOpenAI) -> None:
    """Responses after others, with all that can be set and with nothing set."""
    kept = (await client.conversations.create(items=[USER])).id
    call: Any = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    first = await client.responses.create(
        model=MODEL,
        input=[USER, call, {"type": "function_call_output", "call_id": "call_1", "output": "rain"}],
        conversation=kept,
        instructions="Be brief.",
        metadata={"topic": "demo"},
        max_output_tokens=50,
        max_tool_calls=1,
        parallel_tool_calls=False,
        prompt_cache_key="k",
        reasoning={"effort": "low"},
        safety_identifier="s",
        service_tier="flex",
        temperature=0.5,
        text={"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}},
        tool_choice="none",
        top_p=0.9,
        truncation="disabled",
        user="u",
    )
    second = await client.responses.create(model=MODEL, input="And now?", previous_response_id=first.id)
    assert await client.responses.retrieve(second.id) == second
    await listed(client.responses.input_items.list(first.id))
    await client.responses.delete(second.id)
    await refused(
        client.responses.retrieve(second.id),
        client.responses.delete(second.id),
        client.responses.create(model=MODEL, input="Hello", conversation="conv_x"),
    )


async def outlive(client: AsyncOpenAI) -> None:
    """Responses in the background, resumed, cancelled and generated anew; prompts counted and made shorter."""
    made = await client.responses.create(model=MODEL, input="Hello", background=True)
    await read(client.responses.retrieve(made.id, stream=True))
    await read(client.responses.retrieve(made.id, stream=True, starting_after=2))
    await client.responses.cancel(made.id)
    await read(client.responses.create(model=MODEL, input="Hello", background=True, stream=True))
    await client.post(f"/responses/{made.id}/regenerate", cast_to=object, body={"temperature": 0.5})
    await client.responses.input_tokens.count(model=MODEL, input="Hello")
    await client.responses.compact(model=MODEL, input="Hello")
    await client.post("/feedback", cast_to=object, body={"response_id": made.id, "rating": 1})
    await refused(client.responses.cancel("resp_x"), client.responses.retrieve("resp_x", stream=True))


async def store(client: AsyncOpenAI) -> None:
    made = await client.chat.completions.create(model=MODEL, messages=[USER], store=True, metadata={"topic": "demo"})
    await listed(client.chat.completions.list())
    await client.chat.completions.retrieve(made.id)
    await client.chat.completions.update(made.id, metadata={"topic": "other"})
    await listed(lenient(client).chat.completions.messages.list(made.id))
    await client.chat.completions.delete(made.id)
    await refused(client.chat.completions.retrieve(made.id))


async def look_at_usage(client: AsyncOpenAI, ledger: LedgerStore) -> None:
    now = round(time.time())
    await ledger.write([], [], [a_row(now * 1000, tenant_id=tenant_of_key(client.api_key))])
    for path in ("/organization/usage/completions", "/organization/costs"):
        await client.get(f"{path}?start_time={now - 86_400}&group_by=project_id", cast_to=object)
        await refused(client.get(path, cast_to=object))


async def moderate(client: AsyncOpenAI) -> None:
    await client.moderations.create(input=["Hello", "glue soup"])
    asked: Any = {"model": "any"}
    for is_streamed in (False, True):
        chat: Any = await client.chat.completions.create(
            model=MODEL, messages=[USER], moderation=asked, stream=is_streamed
        )
        response: Any = await client.responses.create(model=MODEL, input="Hello", moderation=asked, stream=is_streamed)
        if is_streamed:
            assert [chunk async for chunk in chat] and [event async for event in response]
    blocked: Any = [{"role": "user", "content": "glue soup"}]
    await refused(
        client.chat.completions.create(model=MODEL, messages=blocked),
        client.responses.create(model=MODEL, input="glue soup"),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def walked(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Record, FastAPI]]:
    """What has passed on the walk, and the application."""
    emptied(postgres)
    async with reached(
        ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path_factory.mktemp("walk"))))
    ) as state:
        engines, record = FakeEngines(), Record()
        frontend = await engines.frontend(512)
        async with clients_of(state, frontend, record) as client_of:
            client = client_of("sk-alice")
            await generate(client, engines, GENERATIONS)
            port = present(client.base_url.port)
            await converse(port, record, engines, GENERATIONS)
            await write_messages(port, record, engines, GENERATIONS)
            await echo(client, engines)
            await look_around(client)
            await remember(client)
            await follow(client)
            await outlive(client)
            await store(client)
            await look_at_usage(client, state.stores.ledger)
        parsing = {"tool_call_parser": "hermes"}, {"reasoning_parser": "granite"}
        for parser, generations in zip(parsing, (TOOL_CALLS, REASONING), strict=True):
            async with clients_of(state, await engines.frontend(512, None, None, None, **parser), record) as client_of:
                client = client_of("sk-alice")
                await generate(client, engines, generations)
                port = present(client.base_url.port)
                await converse(port, record, engines, generations)
                await write_messages(port, record, engines, generations)
        screened = await engines.frontend(512, safety_in(tmp_path_factory.mktemp("safety")))
        async with clients_of(state, screened, record) as client_of:
            await moderate(client_of("sk-alice"))
        await screened.close()
        yield record, an_app(frontend)


async def test_all_that_is_sent_follows_the_document(walked: tuple[Record, FastAPI]) -> None:
    assert "\n".join(walked[0].deviations) == ""


async def test_every_route_is_walked_or_answers_with_nothing_of_openai_s(walked: tuple[Record, FastAPI]) -> None:
    record, app = walked
    missed = [
        f"{method} {route.path}"
        for route in app.routes
        if isinstance(route, Route)
        for method in present(route.methods) - {"HEAD"}
        if not any(asked == method and route.path_regex.match(path) for asked, path in record.asked)
    ]
    assert [route for route in missed if ours.ROUTES.get(route, "OpenAI's") is not None] == []


async def test_every_kind_of_event_is_sent(walked: tuple[Record, FastAPI]) -> None:
    schemas = walked[0].schemas
    assert EVENTS - schemas == set()
    assert {kind for kind, schema in document().of_sockets.items() if schema in schemas} == OF_SOCKETS
    of_anthropic = {anthropic_models.MESSAGE, anthropic_models.COUNT, anthropic_models.EVENT, ours.ERROR_OF_MESSAGES}
    assert of_anthropic <= schemas


async def test_every_waiver_is_used(walked: tuple[Record, FastAPI]) -> None:
    assert [waiver.line for waiver in WAIVERS if waiver not in walked[0].used] == []

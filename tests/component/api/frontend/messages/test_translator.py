"""Messages by Anthropic's official client, over vLLM's front half and engines whose tokens a test chooses."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from api.frontend.frontend import Frontend
from cluster.errors import Overloaded, WorkerUnreachable
from cluster.messages.generation import FinishReason
from tests.component.anthropic_client import anthropic_client
from tests.component.app_with_fakes import an_app
from tests.component.fake_engines import FakeEngines

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
    pytest.mark.asyncio(loop_scope="module"),
]

WINDOW = 512
HELLO: dict[str, Any] = {
    "model": "baton-demo",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Where is Paris?"}],
}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string", "default": None}}},
    "cache_control": {"type": "ephemeral"},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[tuple[FakeEngines, Frontend]]:
    engines = FakeEngines()
    frontend = await engines.frontend(WINDOW, tool_call_parser="hermes")
    yield engines, frontend
    await frontend.close()


@pytest.fixture
def engines(started: tuple[FakeEngines, Frontend]) -> FakeEngines:
    started[0].reset()
    return started[0]


@pytest_asyncio.fixture(loop_scope="module")
async def client(started: tuple[FakeEngines, Frontend], engines: FakeEngines) -> AsyncIterator[AsyncAnthropic]:
    async with anthropic_client(an_app(started[1])) as client:
        yield client


async def whole(client: AsyncAnthropic, *, stream: bool, **fields: Any) -> Any:
    """The message, which the client has put together from the events of a stream."""
    if not stream:
        return await client.messages.create(**HELLO | fields)
    async with client.messages.stream(**HELLO | fields) as events:
        return await events.get_final_message()


def blocks(message: Any) -> list[dict[str, Any]]:
    shown = ("type", "text", "thinking", "name", "input")
    return [{name: block[name] for name in shown if name in block} for block in message.to_dict()["content"]]


def prompt(engines: FakeEngines) -> str:
    """What the model has read last."""
    return str(engines.tokenizer.decode(engines.requests[-1].prompt_token_ids, skip_special_tokens=False))


def body_of(refused: anthropic.APIStatusError) -> dict[str, Any]:
    body: Any = refused.body
    assert isinstance(body, dict) and body["request_id"] == refused.request_id
    return body


@pytest.mark.parametrize("stream", [False, True])
async def test_message(client: AsyncAnthropic, stream: bool) -> None:
    message = await whole(client, stream=stream)
    assert message.id.startswith("msg_") and (message.role, message.type) == ("assistant", "message")
    assert blocks(message) == [{"type": "text", "text": "Paris is nice."}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert usage.cache_read_input_tokens == 2 and usage.input_tokens > 2 and usage.output_tokens > 3


async def test_answers_name_their_request(client: AsyncAnthropic) -> None:
    message = await client.messages.create(**HELLO, extra_headers={"x-request-id": "mine-1"})
    assert message._request_id == "mine-1"


async def test_events_come_in_their_order(client: AsyncAnthropic, engines: FakeEngines) -> None:
    async with await client.messages.create(**HELLO, stream=True) as stream:
        events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    start: Any = events[0]
    assert start.message.usage.input_tokens == len(engines.requests[0].prompt_token_ids)
    assert start.message.content == []


async def test_stream_has_no_frame_of_openai_s(client: AsyncAnthropic) -> None:
    async with client.messages.with_streaming_response.create(**HELLO, stream=True) as response:
        text = await response.text()
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("event: ") for frame in frames) and frames[-1].startswith("event: message_stop")


async def test_silent_stream_is_kept_alive_by_pings(
    started: tuple[FakeEngines, Frontend], engines: FakeEngines
) -> None:
    engines.first_token_s = 0.3
    async with anthropic_client(an_app(started[1], keep_alive_s=0.05)) as client:
        async with client.messages.with_streaming_response.create(**HELLO, stream=True) as response:
            text = await response.text()
        message = await whole(client, stream=True)
    assert text.startswith('event: ping\ndata: {"type":"ping"}\n\n') and ": keep-alive" not in text
    assert blocks(message) == [{"type": "text", "text": "Paris is nice."}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "stop", "max_tokens", "reason"),
    [
        (FinishReason.STOP, "nice", 64, "stop_sequence"),
        (FinishReason.LENGTH, None, 3, "max_tokens"),
        (FinishReason.LENGTH, None, 8000, "model_context_window_exceeded"),
    ],
)
async def test_stop_reasons(
    client: AsyncAnthropic,
    engines: FakeEngines,
    stream: bool,
    finish: FinishReason,
    stop: str | None,
    max_tokens: int,
    reason: str,
) -> None:
    engines.says("Paris is", finish, stop)
    fields = {"stop_sequences": ["nice"]} if stop else {}
    message = await whole(client, stream=stream, max_tokens=max_tokens, **fields)
    assert (message.stop_reason, message.stop_sequence) == (reason, stop)


async def test_answer_gets_at_most_what_the_window_has_left(client: AsyncAnthropic, engines: FakeEngines) -> None:
    await whole(client, stream=True, max_tokens=32_000)
    (asked,) = engines.requests
    assert asked.max_output_tokens == WINDOW - len(asked.prompt_token_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_tools(client: AsyncAnthropic, engines: FakeEngines, stream: bool) -> None:
    engines.says(f"Let me look.\n{CALL}")
    message = await whole(client, stream=stream, tools=[WEATHER])
    assert blocks(message) == [
        {"type": "text", "text": "Let me look.\n"},
        {"type": "tool_use", "name": "weather", "input": {"city": "Paris"}},
    ]
    assert message.stop_reason == "tool_use"
    assert '"default": null' in prompt(engines)


async def test_result_of_a_tool_is_read(client: AsyncAnthropic, engines: FakeEngines) -> None:
    used = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "It rains."}]}
    turns = [
        *HELLO["messages"],
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, used]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    await whole(client, stream=False, messages=turns, tools=[WEATHER])
    read = prompt(engines)
    assert '"city": "Paris"' in read and read.index("It rains.") < read.index("So?")


async def test_tools_that_the_client_runs(client: AsyncAnthropic, engines: FakeEngines) -> None:
    """Its helper asks the server to hold the conversation, and sends all of it when the server does not."""

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Of a city."""
        engines.says("So it does.")
        return f"It rains in {city}."

    engines.says(CALL)
    body: Any = HELLO
    message = await client.beta.messages.tool_runner(**body, tools=[weather]).until_done()
    assert blocks(message) == [{"type": "text", "text": "So it does."}]
    read = prompt(engines)
    assert read.index("Where is Paris?") < read.index("It rains in Paris.")
    assert len(engines.requests) == 2


async def test_what_claude_code_sends(client: AsyncAnthropic, engines: FakeEngines) -> None:
    ephemeral = {"type": "ephemeral"}
    session = {"device_id": "d", "session_id": "s"}
    create: Any = client.beta.messages.create  # whose parameters are unions of many types
    message = await create(
        **HELLO
        | {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Where?", "cache_control": ephemeral}]},
                {"role": "system", "content": "Remember the time."},
            ],
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=2;"},
                {"type": "text", "text": "You are Claude Code.", "cache_control": ephemeral},
            ],
            "tools": [WEATHER | {"name": f"tool_{number}", "input_schema": {}} for number in range(4)],
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "metadata": {"user_id": json.dumps(session)},
            "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        }
    )
    assert blocks(message) == [{"type": "text", "text": "Paris is nice."}]
    read = prompt(engines)
    assert "You are Claude Code." in read and "Remember the time." in read and "billing" not in read


async def test_model_goes_on_with_the_beginning_of_its_answer(client: AsyncAnthropic, engines: FakeEngines) -> None:
    await whole(client, stream=False, messages=[*HELLO["messages"], {"role": "assistant", "content": "It is in"}])
    assert prompt(engines).endswith("It is in")


async def test_tokens_are_counted_without_generating(client: AsyncAnthropic, engines: FakeEngines) -> None:
    asked = {name: value for name, value in HELLO.items() if name != "max_tokens"}
    tools: Any = [WEATHER]
    counted = await client.messages.count_tokens(**asked, tools=tools, system="Be brief.")
    assert not engines.requests
    await whole(client, stream=False, tools=[WEATHER], system="Be brief.")
    assert counted.input_tokens == len(engines.requests[0].prompt_token_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_are_blocks_of_their_own(stream: bool) -> None:
    engines = FakeEngines()
    frontend = await engines.frontend(WINDOW, reasoning_parser="qwen3")
    engines.says("<think>Hm.</think>Paris is nice.")
    try:
        async with anthropic_client(an_app(frontend)) as client:
            fields = {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
            message = await whole(client, stream=stream, **fields)
            off = await whole(client, stream=stream, thinking={"type": "disabled"})
    finally:
        await frontend.close()
    assert blocks(message) == [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Paris is nice."}]
    assert message.content[0].signature
    assert off.stop_reason == "end_turn"


def says_only(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


REFUSED: list[tuple[dict[str, Any], type[anthropic.APIStatusError], str]] = [
    ({"model": "other"}, anthropic.NotFoundError, "model_not_found"),
    ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens must be positive"),
    ({"messages": []}, anthropic.BadRequestError, "at least one message"),
    ({"messages": [{"role": "user", "content": []}]}, anthropic.BadRequestError, "at least one message"),
    ({"messages": [{"role": "robot", "content": "x"}]}, anthropic.BadRequestError, "messages.0.role"),
    (says_only([{"type": "document"}]), anthropic.BadRequestError, "messages.0.content.0.type"),
    (says_only([{"type": "text", "text": 5}]), anthropic.BadRequestError, "messages.0.content.0.text"),
    (says_only([{"type": "image"}]), anthropic.BadRequestError, "no images"),
    (says_only("a " * 900), anthropic.BadRequestError, "prompt is too long"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, anthropic.BadRequestError, "runs no tools of its own"),
    ({"tools": [{"name": "w"}]}, anthropic.BadRequestError, "input_schema"),
    ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "tool"),
    ({"extra_body": {"temperature": 7}}, anthropic.BadRequestError, "temperature"),
    ({"extra_body": {"kv_transfer_params": {}}}, anthropic.BadRequestError, "unknown field"),
    ({"stop_sequences": ["x"] * 9}, anthropic.BadRequestError, "stop_sequences"),
    ({"service_tier": "best"}, anthropic.BadRequestError, "service_tier"),
    ({"thinking": {"type": "enabled", "budget_tokens": 4000}}, anthropic.BadRequestError, "less than max_tokens"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "kind", "says"), REFUSED)
async def test_wrong_requests_are_refused_as_anthropic_s_exceptions(
    client: AsyncAnthropic,
    engines: FakeEngines,
    fields: dict[str, Any],
    kind: type[anthropic.APIStatusError],
    says: str,
    stream: bool,
) -> None:
    with pytest.raises(kind) as refused:
        await client.messages.create(**HELLO | fields, stream=stream)
    assert says in json.dumps(body_of(refused.value)["error"]) and not engines.requests


@pytest.mark.parametrize("stream", [False, True])
async def test_engines_that_are_away_are_overloaded(client: AsyncAnthropic, engines: FakeEngines, stream: bool) -> None:
    engines.deltas, engines.error = [], Overloaded("no worker can be reached", 1.0)
    with pytest.raises(anthropic.OverloadedError) as refused:
        await client.messages.create(**HELLO, stream=stream)
    assert refused.value.status_code == 529 and refused.value.response.headers["retry-after"] == "1"
    assert body_of(refused.value)["error"]["type"] == "overloaded_error"


async def test_stream_that_fails_midway_ends_with_an_error(client: AsyncAnthropic, engines: FakeEngines) -> None:
    del engines.deltas[-1]
    engines.error = WorkerUnreachable("worker d0 is gone", "d0")
    texts = []
    with pytest.raises(anthropic.APIStatusError) as failed:
        async with client.messages.stream(**HELLO) as stream:
            texts = [text async for text in stream.text_stream]
    assert body_of(failed.value)["error"] == {
        "type": "api_error",
        "message": "worker d0 is gone",
        "details": {"error_code": "worker_failed"},
    }
    assert not texts and engines.num_ended == 1


async def test_client_that_leaves_ends_its_generation(client: AsyncAnthropic, engines: FakeEngines) -> None:
    async with client.messages.stream(**HELLO) as stream:
        async for _ in stream:
            break
    assert engines.num_ended == 1

"""OpenAI's client for Python: chat completions, responses, conversations, and its errors."""

import json
from typing import Any, Literal

import openai
import pydantic

from tests.clients.flows import (
    CAPITAL,
    CITIES,
    CITY,
    ITS_ANSWER,
    KEY,
    LONG,
    MODEL,
    MY_NAME,
    NOBODY,
    PARAMETERS,
    READ_PARTS,
    SKY,
    THE_NAME,
    TIMEOUT_S,
    TOOL,
    TOOL_DESCRIPTION,
    URL,
    WEATHER,
    WHO_AM_I,
    WRONG_KEY,
    flow,
    raised,
    require,
    run,
)


class Answer(pydantic.BaseModel):
    """What a structured answer is read into."""

    city: Literal["Rome", "Paris"]


BASE = f"{URL}/v1"
client: Any = openai.OpenAI(base_url=BASE, api_key=KEY, timeout=TIMEOUT_S, max_retries=0)
stranger: Any = openai.OpenAI(base_url=BASE, api_key=WRONG_KEY, timeout=TIMEOUT_S, max_retries=0)
FUNCTION = {"name": TOOL, "description": TOOL_DESCRIPTION, "parameters": PARAMETERS}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": CAPITAL}], "temperature": 0}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": CAPITAL, "temperature": 0}


@flow("models: list and retrieve")
def models() -> str:
    assert MODEL in [card.id for card in client.models.list()]
    return client.models.retrieve(MODEL).id


@flow("models: unknown model")
def unknown_card() -> str:
    error = raised(openai.NotFoundError, lambda: client.models.retrieve(NOBODY))
    return str(error.code)


@flow("chat: answer")
def chat() -> str:
    answer = client.chat.completions.create(**CHAT)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return require(answer.choices[0].message.content, ITS_ANSWER)


@flow("chat: stream")
def chat_stream() -> str:
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    parts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(parts) > 1, f"came in {len(parts)} part"
    assert chunks[-1].usage.completion_tokens >= len(parts)
    return require("".join(parts), ITS_ANSWER)


@flow("chat: asynchronous stream")
async def chat_async() -> str:
    other: Any = openai.AsyncOpenAI(base_url=BASE, api_key=KEY, timeout=TIMEOUT_S, max_retries=0)
    async with other:
        stream = await other.chat.completions.create(**CHAT, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return require("".join(parts), ITS_ANSWER)


@flow("chat: tools, with their result")
def chat_tools() -> str:
    tools = [{"type": "function", "function": FUNCTION}]
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    asked = client.chat.completions.create(**CHAT | {"messages": messages}, tools=tools)
    (call,) = asked.choices[0].message.tool_calls
    assert asked.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == (TOOL, {"city": CITY})
    messages += [asked.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": SKY}]
    told = client.chat.completions.create(**CHAT | {"messages": messages}, tools=tools)
    return require(told.choices[0].message.content, SKY)


@flow("chat: tools in a stream")
def chat_streamed_tools() -> str:
    """By the client's helper, which puts the parts of a call together."""
    tools = [{"type": "function", "function": FUNCTION}]
    body = CHAT | {"messages": [{"role": "user", "content": WEATHER}]}
    with client.chat.completions.stream(**body, tools=tools) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert [(event.name, json.loads(event.arguments)) for event in done] == [(TOOL, {"city": CITY})]
    return call.function.arguments


@flow("chat: structured output")
def chat_parse() -> str:
    message = client.chat.completions.parse(**CHAT, response_format=Answer).choices[0].message
    assert isinstance(message.parsed, Answer), message
    return str(message.parsed)


@flow("chat: several turns")
def chat_turns() -> str:
    messages: list[Any] = [{"role": "user", "content": MY_NAME}]
    messages.append(client.chat.completions.create(**CHAT | {"messages": messages}).choices[0].message)
    messages.append({"role": "user", "content": WHO_AM_I})
    return require(client.chat.completions.create(**CHAT | {"messages": messages}).choices[0].message.content, THE_NAME)


@flow("chat: unknown model")
def chat_unknown() -> str:
    error = raised(openai.NotFoundError, lambda: client.chat.completions.create(**CHAT | {"model": NOBODY}))
    assert error.code == "model_not_found"
    return require(error.message, NOBODY)


@flow("chat: wrong key")
def chat_wrong_key() -> str:
    error = raised(openai.AuthenticationError, lambda: stranger.chat.completions.create(**CHAT))
    assert error.code == "invalid_api_key"
    return str(error.code)


@flow("chat: prompt that is too long")
def chat_too_long() -> str:
    long = CHAT | {"messages": [{"role": "user", "content": "word " * 200_000}]}
    error = raised(openai.BadRequestError, lambda: client.chat.completions.create(**long))
    assert error.code == "context_length_exceeded"
    return str(error.code)


@flow("chat: cancel in mid-stream")
def chat_cancel() -> str:
    body = CHAT | {"messages": [{"role": "user", "content": LONG}], "max_tokens": 3000}
    with client.chat.completions.create(**body, stream=True, extra_body={"ignore_eos": True}) as stream:
        parts = [chunk for chunk, _ in zip(stream, range(READ_PARTS), strict=False)]
    assert len(parts) == READ_PARTS
    return chat()


@flow("completions: stream")
def completions() -> str:
    stream = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0, stream=True
    )
    return require("".join(chunk.choices[0].text for chunk in stream), ITS_ANSWER)


@flow("responses: answer")
def response() -> str:
    answer = client.responses.create(**RESPONSE)
    assert answer.status == "completed"
    return require(answer.output_text, ITS_ANSWER)


@flow("responses: stream")
def response_stream() -> str:
    with client.responses.stream(**RESPONSE) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == final.output_text
    assert events[-1].type == "response.completed"
    return require(final.output_text, ITS_ANSWER)


@flow("responses: tools, with their result")
def response_tools() -> str:
    tools: Any = [{"type": "function", **FUNCTION, "strict": False}]
    asked = client.responses.create(**RESPONSE | {"input": WEATHER}, tools=tools)
    (call,) = [item for item in asked.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == (TOOL, {"city": CITY})
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": SKY}
    told = client.responses.create(**RESPONSE | {"input": [result]}, previous_response_id=asked.id, tools=tools)
    return require(told.output_text, SKY)


@flow("responses: structured output")
def response_parse() -> str:
    parsed = client.responses.parse(**RESPONSE, text_format=Answer).output_parsed
    assert isinstance(parsed, Answer)
    assert parsed.city in CITIES
    return str(parsed)


@flow("responses: several turns")
def response_turns() -> str:
    first = client.responses.create(**RESPONSE | {"input": MY_NAME})
    second = client.responses.create(**RESPONSE | {"input": WHO_AM_I}, previous_response_id=first.id)
    return require(second.output_text, THE_NAME)


@flow("responses: conversations")
def conversations() -> str:
    conversation = client.conversations.create()
    for question in (MY_NAME, WHO_AM_I):
        answer = client.responses.create(**RESPONSE | {"input": question}, conversation=conversation.id)
    items = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in items] == ["user", "assistant"] * 2
    assert client.conversations.delete(conversation.id).deleted
    return require(answer.output_text, THE_NAME)


@flow("responses: in the background, then cancelled")
def background() -> str:
    running = client.responses.create(**RESPONSE | {"input": LONG}, background=True)
    assert running.status in ("queued", "in_progress"), running.status
    cancelled = client.responses.cancel(running.id)
    assert cancelled.status == "cancelled", cancelled.status
    return str(client.responses.retrieve(running.id).status)


@flow("responses: WebSocket")
def websocket() -> str:
    """The second turn follows one that is not stored."""
    with client.responses.connect() as connection:
        first = spoken(connection, {"input": MY_NAME})
        second = spoken(connection, {"input": WHO_AM_I, "previous_response_id": first.id})
    return require(second.output_text, THE_NAME)


def spoken(connection: Any, message: dict[str, Any]) -> Any:
    """The response to a message over a WebSocket."""
    connection.send({"type": "response.create", **RESPONSE, "store": False, **message})
    for event in connection:
        assert event.type != "error", event
        if event.type == "response.completed":
            return event.response
    raise AssertionError("the WebSocket was closed")


@flow("responses: unknown model")
def response_unknown() -> str:
    error = raised(openai.NotFoundError, lambda: client.responses.create(**RESPONSE | {"model": NOBODY}))
    return require(error.code, "model_not_found")


@flow("responses: wrong key")
def response_wrong_key() -> str:
    error = raised(openai.AuthenticationError, lambda: stranger.responses.create(**RESPONSE))
    return require(error.code, "invalid_api_key")


@flow("responses: cancel in mid-stream")
def response_cancel() -> str:
    with client.responses.create(**RESPONSE | {"input": LONG}, store=False, stream=True) as stream:
        for seen, event in enumerate(stream):
            assert event.type != "response.completed"
            if seen >= READ_PARTS and event.type == "response.output_text.delta":
                break
    return response()


run()

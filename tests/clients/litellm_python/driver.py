"""LiteLLM: the same calls through its providers for OpenAI's and Anthropic's APIs."""

import asyncio
import json
from typing import Any, Literal

import litellm
import pydantic

from tests.clients.flows import (
    CAPITAL,
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


class Capital(pydantic.BaseModel):
    """What a structured answer is read into."""

    city: Literal["Rome", "Paris"]


OPENAI: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1"}
ANTHROPIC: dict[str, Any] = {"model": f"anthropic/{MODEL}", "api_base": URL, "max_tokens": 60}
COMMON: dict[str, Any] = {"api_key": KEY, "temperature": 0, "timeout": TIMEOUT_S, "num_retries": 0}
TOOLS = [{"type": "function", "function": {"name": TOOL, "description": TOOL_DESCRIPTION, "parameters": PARAMETERS}}]


def said(provider: dict[str, Any], messages: Any, **more: Any) -> Any:
    asked = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
    return litellm.completion(**provider | COMMON | {"messages": asked} | more)


def streamed(provider: dict[str, Any]) -> str:
    parts = [chunk.choices[0].delta.content or "" for chunk in said(provider, CAPITAL, stream=True)]
    assert len([part for part in parts if part]) > 1
    return require("".join(parts), ITS_ANSWER)


def with_result_of_tool(provider: dict[str, Any]) -> str:
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    asked = said(provider, messages, tools=TOOLS).choices[0].message
    (call,) = asked.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (TOOL, {"city": CITY})
    messages += [asked, {"role": "tool", "tool_call_id": call.id, "name": TOOL, "content": SKY}]
    return require(said(provider, messages, tools=TOOLS).choices[0].message.content, SKY)


def turns(provider: dict[str, Any]) -> str:
    messages: list[Any] = [{"role": "user", "content": MY_NAME}]
    messages += [said(provider, messages).choices[0].message, {"role": "user", "content": WHO_AM_I}]
    return require(said(provider, messages).choices[0].message.content, THE_NAME)


async def cancelled(provider: dict[str, Any]) -> str:
    seen, begun = 0, asyncio.Event()

    async def read() -> None:
        nonlocal seen
        body = provider | COMMON | {"messages": [{"role": "user", "content": LONG}], "max_tokens": 3000}
        async for _ in await litellm.acompletion(**body, stream=True):
            seen += 1
            if seen == READ_PARTS:
                begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled(), "the answer has ended before it was cancelled"
    return f"after {seen} parts"


@flow("chat: answer")
def chat() -> str:
    return require(said(OPENAI, CAPITAL).choices[0].message.content, ITS_ANSWER)


@flow("chat: stream")
def chat_stream() -> str:
    return streamed(OPENAI)


@flow("chat: tools, with their result")
def chat_tools() -> str:
    return with_result_of_tool(OPENAI)


@flow("chat: structured output")
def chat_structured() -> str:
    answer = said(OPENAI, CAPITAL, response_format=Capital).choices[0].message.content
    return str(Capital.model_validate_json(answer))


@flow("chat: several turns")
def chat_turns() -> str:
    return turns(OPENAI)


@flow("chat: unknown model")
def chat_unknown() -> str:
    error = raised(litellm.NotFoundError, lambda: said(OPENAI, CAPITAL, model=f"openai/{NOBODY}"))
    return require(str(error), NOBODY)


@flow("chat: wrong key")
def chat_wrong_key() -> str:
    return str(raised(litellm.AuthenticationError, lambda: said(OPENAI, CAPITAL, api_key=WRONG_KEY)).status_code)


@flow("chat: prompt that is too long")
def chat_too_long() -> str:
    error = raised(litellm.ContextWindowExceededError, lambda: said(OPENAI, "word " * 200_000))
    return str(error.status_code)


@flow("chat: cancel in mid-stream")
async def chat_cancel() -> str:
    return await cancelled(OPENAI)


@flow("completions: answer")
def completion() -> str:
    body = {"model": f"text-completion-openai/{MODEL}", "api_base": f"{URL}/v1"} | COMMON
    answer = litellm.text_completion(**body, prompt="The capital of France is", max_tokens=8)
    return require(answer.choices[0].text, ITS_ANSWER)


@flow("responses: answer")
def response() -> str:
    answer = litellm.responses(**OPENAI | COMMON, input=CAPITAL)
    return require(answer.output_text, ITS_ANSWER)


@flow("responses: stream")
def response_stream() -> str:
    events = list(litellm.responses(**OPENAI | COMMON, input=CAPITAL, stream=True))
    parts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(parts) > 1 and events[-1].type == "response.completed"
    return require("".join(parts), ITS_ANSWER)


@flow("messages: answer")
def message() -> str:
    return require(said(ANTHROPIC, CAPITAL).choices[0].message.content, ITS_ANSWER)


@flow("messages: stream")
def message_stream() -> str:
    return streamed(ANTHROPIC)


@flow("messages: tools, with their result")
def message_tools() -> str:
    return with_result_of_tool(ANTHROPIC)


@flow("messages: several turns")
def message_turns() -> str:
    return turns(ANTHROPIC)


@flow("messages: unknown model")
def message_unknown() -> str:
    error = raised(litellm.NotFoundError, lambda: said(ANTHROPIC, CAPITAL, model=f"anthropic/{NOBODY}"))
    return require(str(error), NOBODY)


@flow("messages: wrong key")
def message_wrong_key() -> str:
    return str(raised(litellm.AuthenticationError, lambda: said(ANTHROPIC, CAPITAL, api_key=WRONG_KEY)).status_code)


@flow("messages: cancel in mid-stream")
async def message_cancel() -> str:
    return await cancelled(ANTHROPIC)


run()

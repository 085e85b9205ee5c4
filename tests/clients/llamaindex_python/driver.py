"""LlamaIndex: OpenAILike over chat completions, and an agent."""

import asyncio
from typing import Any, Literal

import openai
import pydantic
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.flows import (
    CAPITAL,
    CITY,
    ITS_ANSWER,
    KEY,
    LONG,
    MODEL,
    MY_NAME,
    NOBODY,
    READ_PARTS,
    SKY,
    THE_NAME,
    TIMEOUT_S,
    TOOL,
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
    """The capital of a country."""

    city: Literal["Rome", "Paris"]


def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    return SKY


weather_tool = FunctionTool.from_defaults(get_weather)


def model(**changes: Any) -> Any:
    settings = {"model": MODEL, "api_key": KEY, "temperature": 0, "max_tokens": 100, "is_chat_model": True} | changes
    return OpenAILike(
        api_base=f"{URL}/v1",
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        context_window=4096,
        timeout=TIMEOUT_S,
        max_retries=0,
        **settings,
    )


def user(text: str) -> Any:
    return ChatMessage(role="user", content=text)


@flow("chat: answer")
def chat() -> str:
    return require(model().chat([user(CAPITAL)]).message.content, ITS_ANSWER)


@flow("chat: stream")
def chat_stream() -> str:
    parts = [chunk.delta or "" for chunk in model().stream_chat([user(CAPITAL)])]
    assert len([part for part in parts if part]) > 1
    return require("".join(parts), ITS_ANSWER)


@flow("chat: tools, with their result")
def chat_tools() -> str:
    llm = model()
    asked = llm.chat_with_tools([weather_tool], user_msg=WEATHER)
    (call,) = llm.get_tool_calls_from_response(asked)
    assert (call.tool_name, call.tool_kwargs) == (TOOL, {"city": CITY})
    result = ChatMessage(role="tool", content=SKY, additional_kwargs={"tool_call_id": call.tool_id})
    told = llm.chat_with_tools([weather_tool], chat_history=[user(WEATHER), asked.message, result])
    return require(told.message.content, SKY)


@flow("chat: structured output")
def chat_structured() -> str:
    answer = model().as_structured_llm(Capital).complete(CAPITAL).raw
    assert isinstance(answer, Capital)
    return str(answer)


@flow("chat: several turns")
def chat_turns() -> str:
    first = model().chat([user(MY_NAME)]).message
    return require(model().chat([user(MY_NAME), first, user(WHO_AM_I)]).message.content, THE_NAME)


@flow("chat: agent")
async def chat_agent() -> str:
    agent = FunctionAgent(tools=[weather_tool], llm=model())
    return require(str(await agent.run(WEATHER)), SKY)


@flow("chat: unknown model")
def chat_unknown() -> str:
    error = raised(openai.NotFoundError, lambda: model(model=NOBODY).chat([user(CAPITAL)]))
    return require(error.code, "model_not_found")


@flow("chat: wrong key")
def chat_wrong_key() -> str:
    error = raised(openai.AuthenticationError, lambda: model(api_key=WRONG_KEY).chat([user(CAPITAL)]))
    return require(error.code, "invalid_api_key")


@flow("chat: cancel in mid-stream")
async def chat_cancel() -> str:
    seen, begun = 0, asyncio.Event()

    async def read() -> None:
        nonlocal seen
        async for _ in await model(max_tokens=3000).astream_chat([user(LONG)]):
            seen += 1
            if seen == READ_PARTS:
                begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled(), "the answer has ended before it was cancelled"
    return f"after {seen} parts"


@flow("completions: answer")
def completion() -> str:
    text = model(is_chat_model=False, max_tokens=8).complete("The capital of France is").text
    return require(text, ITS_ANSWER)


run()

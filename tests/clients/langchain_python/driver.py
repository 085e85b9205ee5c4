"""LangChain: ChatOpenAI over chat completions and over responses, ChatAnthropic over messages, and an agent."""

import asyncio
from typing import Any, Literal

import pydantic
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_anthropic.chat_models import AnthropicAuthenticationError, AnthropicModelNotFoundError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import OpenAIAuthenticationError, OpenAIModelNotFoundError

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
    """The capital of a country."""

    city: Literal["Rome", "Paris"]


def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    return SKY


get_weather_tool = tool(get_weather)


def of_openai(**changes: Any) -> Any:
    settings = {"model": MODEL, "api_key": KEY, "temperature": 0} | changes
    return ChatOpenAI(base_url=f"{URL}/v1", timeout=TIMEOUT_S, max_retries=0, **settings)


def of_anthropic(**changes: Any) -> Any:
    settings = {"model": MODEL, "api_key": KEY, "temperature": 0, "max_tokens": 60} | changes
    return ChatAnthropic(base_url=URL, timeout=TIMEOUT_S, max_retries=0, **settings)


def streamed(model: Any) -> str:
    parts = [chunk.text for chunk in model.stream(CAPITAL)]
    assert len([part for part in parts if part]) > 1
    return require("".join(parts), ITS_ANSWER)


def with_result_of_tool(model: Any) -> str:
    bound = model.bind_tools([get_weather_tool])
    asked: AIMessage = bound.invoke(WEATHER)
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == (TOOL, {"city": CITY})
    result: ToolMessage = get_weather_tool.invoke(call)
    return require(bound.invoke([HumanMessage(WEATHER), asked, result]).text, SKY)


def structured(model: Any) -> str:
    answer = model.with_structured_output(Capital, method="json_schema").invoke(CAPITAL)
    assert isinstance(answer, Capital)
    return str(answer)


def turns(model: Any) -> str:
    first = model.invoke([HumanMessage(MY_NAME)])
    return require(model.invoke([HumanMessage(MY_NAME), first, HumanMessage(WHO_AM_I)]).text, THE_NAME)


def cancelled(model: Any) -> str:
    """A task that streams is cancelled, as a server of LangChain's does when its own client leaves."""

    async def leave() -> int:
        seen, begun = 0, asyncio.Event()

        async def read() -> None:
            nonlocal seen
            async for _ in model.astream(LONG):
                seen += 1
                if seen == READ_PARTS:
                    begun.set()

        reading = asyncio.create_task(read())
        await begun.wait()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled(), "the answer has ended before it was cancelled"
        return seen

    return f"after {asyncio.run(leave())} parts"


@flow("chat: answer")
def chat() -> str:
    message = of_openai().invoke(CAPITAL)
    assert message.usage_metadata["total_tokens"] > message.usage_metadata["input_tokens"]
    return require(message.text, ITS_ANSWER)


@flow("chat: stream")
def chat_stream() -> str:
    return streamed(of_openai())


@flow("chat: tools, with their result")
def chat_tools() -> str:
    return with_result_of_tool(of_openai())


@flow("chat: structured output")
def chat_structured() -> str:
    return structured(of_openai())


@flow("chat: structured output by a call")
def chat_structured_by_call() -> str:
    """The schema of a call's arguments binds no model, so this is a call that the demo model knows."""
    schema = pydantic.create_model(TOOL, __doc__=TOOL_DESCRIPTION, city=(str, ...))
    answer = of_openai().with_structured_output(schema, method="function_calling").invoke(WEATHER)
    return require(answer.city, CITY)


@flow("chat: several turns")
def chat_turns() -> str:
    return turns(of_openai())


@flow("chat: agent")
def chat_agent() -> str:
    agent = create_agent(of_openai(), [get_weather_tool])
    messages = agent.invoke({"messages": [HumanMessage(WEATHER)]})["messages"]
    assert [type(message) for message in messages] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    return require(messages[-1].text, SKY)


@flow("chat: batch")
def chat_batch() -> str:
    answers = [message.text for message in of_openai().batch([CAPITAL, "What is the capital of Italy?"])]
    require(answers[0], "Paris")
    return require(answers[1], "Rome")


@flow("chat: unknown model")
def chat_unknown() -> str:
    error = raised(OpenAIModelNotFoundError, lambda: of_openai(model=NOBODY).invoke(CAPITAL))
    return require(error.code, "model_not_found")


@flow("chat: wrong key")
def chat_wrong_key() -> str:
    error = raised(OpenAIAuthenticationError, lambda: of_openai(api_key=WRONG_KEY).invoke(CAPITAL))
    return require(error.code, "invalid_api_key")


@flow("chat: cancel in mid-stream")
def chat_cancel() -> str:
    return cancelled(of_openai(max_tokens=3000))


@flow("responses: answer")
def response() -> str:
    return require(of_openai(use_responses_api=True).invoke(CAPITAL).text, ITS_ANSWER)


@flow("responses: stream")
def response_stream() -> str:
    return streamed(of_openai(use_responses_api=True))


@flow("responses: tools, with their result")
def response_tools() -> str:
    return with_result_of_tool(of_openai(use_responses_api=True))


@flow("responses: structured output")
def response_structured() -> str:
    return structured(of_openai(use_responses_api=True))


@flow("responses: several turns")
def response_turns() -> str:
    """The second one names the first one's id instead of its messages."""
    model = of_openai(use_responses_api=True, use_previous_response_id=True)
    return turns(model)


@flow("messages: answer")
def message() -> str:
    return require(of_anthropic().invoke(CAPITAL).text, ITS_ANSWER)


@flow("messages: stream")
def message_stream() -> str:
    return streamed(of_anthropic())


@flow("messages: tools, with their result")
def message_tools() -> str:
    return with_result_of_tool(of_anthropic())


@flow("messages: structured output")
def message_structured() -> str:
    return structured(of_anthropic())


@flow("messages: several turns")
def message_turns() -> str:
    return turns(of_anthropic())


@flow("messages: unknown model")
def message_unknown() -> str:
    error = raised(AnthropicModelNotFoundError, lambda: of_anthropic(model=NOBODY).invoke(CAPITAL))
    return require(error.message, NOBODY)


@flow("messages: wrong key")
def message_wrong_key() -> str:
    error = raised(AnthropicAuthenticationError, lambda: of_anthropic(api_key=WRONG_KEY).invoke(CAPITAL))
    return str(error.status_code)


@flow("messages: cancel in mid-stream")
def message_cancel() -> str:
    return cancelled(of_anthropic(max_tokens=3000))


run()

"""OpenAI Agents SDK: agents over responses and over chat completions."""

from typing import Any, Literal

import openai
import pydantic
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
)

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


asked: list[str] = []
"""Cities that the tool was called for."""


def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    asked.append(city)
    return SKY


weather_tool = function_tool(get_weather)


def client(key: str = KEY) -> Any:
    return openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=key, timeout=TIMEOUT_S, max_retries=0)


def agent(model: Any, name: str = MODEL, key: str = KEY, made: dict[str, Any] | None = None, **settings: Any) -> Any:
    """`made`: further settings of the model."""
    return Agent(
        name="Helper",
        model=model(model=name, openai_client=client(key)),
        model_settings=ModelSettings(**{"temperature": 0, "max_tokens": 100} | (made or {})),
        **settings,
    )


async def streamed(model: Any) -> str:
    result = Runner.run_streamed(agent(model), CAPITAL)
    parts = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert len(parts) > 1 and "".join(parts) == result.final_output
    return require(result.final_output, ITS_ANSWER)


async def with_tool(model: Any) -> str:
    asked.clear()
    result = await Runner.run(agent(model, tools=[weather_tool]), WEATHER)
    assert asked == [CITY]
    return require(result.final_output, SKY)


async def structured(model: Any) -> str:
    answer = (await Runner.run(agent(model, output_type=Capital), CAPITAL)).final_output
    assert isinstance(answer, Capital)
    return str(answer)


async def turns(model: Any, session: Any) -> str:
    await Runner.run(agent(model), MY_NAME, session=session)
    return require((await Runner.run(agent(model), WHO_AM_I, session=session)).final_output, THE_NAME)


async def cancelled(model: Any) -> str:
    """`cancel` of a run ends its events and its request. A response that is stored would go on."""
    result, seen = Runner.run_streamed(agent(model, made={"store": False, "max_tokens": 3000}), LONG), 0
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            seen += 1
            if seen == READ_PARTS:
                result.cancel()
        assert event.type != "raw_response_event" or event.data.type != "response.completed"
    assert seen >= READ_PARTS
    return f"after {seen} parts"


@flow("responses: answer")
async def response() -> str:
    return require((await Runner.run(agent(OpenAIResponsesModel), CAPITAL)).final_output, ITS_ANSWER)


@flow("responses: stream")
async def response_stream() -> str:
    return await streamed(OpenAIResponsesModel)


@flow("responses: tools, with their result")
async def response_tools() -> str:
    return await with_tool(OpenAIResponsesModel)


@flow("responses: structured output")
async def response_structured() -> str:
    return await structured(OpenAIResponsesModel)


@flow("responses: several turns, kept by the client")
async def response_turns() -> str:
    return await turns(OpenAIResponsesModel, SQLiteSession("one"))


@flow("responses: several turns, kept by Baton")
async def response_conversation() -> str:
    return await turns(OpenAIResponsesModel, OpenAIConversationsSession(openai_client=client()))


@flow("responses: unknown model")
def response_unknown() -> str:
    error = raised(openai.NotFoundError, lambda: Runner.run_sync(agent(OpenAIResponsesModel, name=NOBODY), CAPITAL))
    return require(error.code, "model_not_found")


@flow("responses: wrong key")
def response_wrong_key() -> str:
    stranger = agent(OpenAIResponsesModel, key=WRONG_KEY)
    return require(
        raised(openai.AuthenticationError, lambda: Runner.run_sync(stranger, CAPITAL)).code, "invalid_api_key"
    )


@flow("responses: cancel in mid-stream")
async def response_cancel() -> str:
    return await cancelled(OpenAIResponsesModel)


@flow("chat: answer")
async def chat() -> str:
    return require((await Runner.run(agent(OpenAIChatCompletionsModel), CAPITAL)).final_output, ITS_ANSWER)


@flow("chat: stream")
async def chat_stream() -> str:
    return await streamed(OpenAIChatCompletionsModel)


@flow("chat: tools, with their result")
async def chat_tools() -> str:
    return await with_tool(OpenAIChatCompletionsModel)


@flow("chat: structured output")
async def chat_structured() -> str:
    return await structured(OpenAIChatCompletionsModel)


@flow("chat: several turns")
async def chat_turns() -> str:
    return await turns(OpenAIChatCompletionsModel, SQLiteSession("two"))


@flow("chat: cancel in mid-stream")
async def chat_cancel() -> str:
    return await cancelled(OpenAIChatCompletionsModel)


run()

"""Anthropic's client for Python: messages, and its errors."""

import json
from typing import Any, Literal

import anthropic
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
    SCHEMA,
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


client: Any = anthropic.Anthropic(base_url=URL, api_key=KEY, timeout=TIMEOUT_S, max_retries=0)
stranger: Any = anthropic.Anthropic(base_url=URL, api_key=WRONG_KEY, timeout=TIMEOUT_S, max_retries=0)
MESSAGE: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 60,
    "messages": [{"role": "user", "content": CAPITAL}],
    # The client has no argument for it any more
    "extra_body": {"temperature": 0},
}
TOOLS: Any = [{"name": TOOL, "description": TOOL_DESCRIPTION, "input_schema": PARAMETERS}]


@flow("messages: answer")
def answer() -> str:
    message = client.messages.create(**MESSAGE)
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 1
    return require(message.content[0].text, ITS_ANSWER)


@flow("messages: stream")
def streamed() -> str:
    with client.messages.stream(**MESSAGE) as stream:
        parts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(parts) > 1 and "".join(parts) == final.content[0].text
    return require(final.content[0].text, ITS_ANSWER)


@flow("messages: asynchronous stream")
async def asynchronous() -> str:
    other: Any = anthropic.AsyncAnthropic(base_url=URL, api_key=KEY, timeout=TIMEOUT_S, max_retries=0)
    async with other, other.messages.stream(**MESSAGE) as stream:
        return require(await stream.get_final_text(), ITS_ANSWER)


@flow("messages: tools, with their result")
def tools() -> str:
    messages: list[Any] = [{"role": "user", "content": WEATHER}]
    asked = client.messages.create(**MESSAGE | {"messages": messages}, tools=TOOLS)
    assert asked.stop_reason == "tool_use"
    (use,) = [block for block in asked.content if block.type == "tool_use"]
    assert (use.name, use.input) == (TOOL, {"city": CITY})
    messages.append({"role": "assistant", "content": asked.content})
    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": SKY}]})
    return require(client.messages.create(**MESSAGE | {"messages": messages}, tools=TOOLS).content[0].text, SKY)


@flow("messages: tools in a stream")
def streamed_tools() -> str:
    with client.messages.stream(
        **MESSAGE | {"messages": [{"role": "user", "content": WEATHER}]}, tools=TOOLS
    ) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        (use,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert json.loads("".join(parts)) == use.input == {"city": CITY}
    return f"in {len(parts)} parts"


@flow("messages: tools run by the client")
def tool_runner() -> str:
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """Get the current weather of a city."""
        asked.append(city)
        return SKY

    body = MESSAGE | {"messages": [{"role": "user", "content": WEATHER}]}
    runner = client.beta.messages.tool_runner(**body, tools=[anthropic.beta_tool(get_weather)])
    last = runner.until_done()
    assert asked == [CITY]
    return require(last.content[0].text, SKY)


@flow("messages: structured output")
def structured() -> str:
    parsed = client.messages.parse(**MESSAGE, output_format=Capital).parsed_output
    assert isinstance(parsed, Capital)
    return str(parsed)


@flow("messages: structured output by a schema")
def structured_by_schema() -> str:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    text = client.messages.create(**MESSAGE, output_config=config).content[0].text
    assert json.loads(text)["city"] in SCHEMA["properties"]["city"]["enum"]
    return text


@flow("messages: several turns")
def turns() -> str:
    messages: list[Any] = [{"role": "user", "content": MY_NAME}]
    messages.append(
        {"role": "assistant", "content": client.messages.create(**MESSAGE | {"messages": messages}).content}
    )
    messages.append({"role": "user", "content": WHO_AM_I})
    return require(client.messages.create(**MESSAGE | {"messages": messages}).content[0].text, THE_NAME)


@flow("messages: count tokens")
def count_tokens() -> str:
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGE["messages"]).input_tokens
    usage = client.messages.create(**MESSAGE).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    return str(counted)


@flow("messages: unknown model")
def unknown_model() -> str:
    error = raised(anthropic.NotFoundError, lambda: client.messages.create(**MESSAGE | {"model": NOBODY}))
    assert error.body["error"]["type"] == "not_found_error"
    return require(error.message, NOBODY)


@flow("messages: wrong key")
def wrong_key() -> str:
    error = raised(anthropic.AuthenticationError, lambda: stranger.messages.create(**MESSAGE))
    return require(error.body["error"]["type"], "authentication_error")


@flow("messages: prompt that is too long")
def too_long() -> str:
    long = MESSAGE | {"messages": [{"role": "user", "content": "word " * 200_000}]}
    return require(raised(anthropic.BadRequestError, lambda: client.messages.create(**long)).message, "too long")


@flow("messages: cancel in mid-stream")
def cancel() -> str:
    body = MESSAGE | {"messages": [{"role": "user", "content": LONG}], "max_tokens": 3000}
    with client.messages.stream(**body) as stream:
        parts = [part for part, _ in zip(stream.text_stream, range(READ_PARTS), strict=False)]
    assert len(parts) == READ_PARTS
    return answer()


run()

"""Instructor: answers as objects, over chat completions, responses and messages."""

from typing import Any, Literal

import anthropic
import instructor
import openai
import pydantic
from instructor.core import InstructorRetryException

from tests.clients.flows import (
    CAPITAL,
    CITIES,
    CITY,
    KEY,
    MODEL,
    NOBODY,
    TIMEOUT_S,
    TOOL,
    TOOL_DESCRIPTION,
    URL,
    WEATHER,
    WRONG_KEY,
    flow,
    raised,
    require,
    run,
)


class Capital(pydantic.BaseModel):
    """The capital of a country."""

    city: Literal["Rome", "Paris"]


Weather = pydantic.create_model(TOOL, __doc__=TOOL_DESCRIPTION, city=(str, ...))
"""What is read from the arguments of a call. Their schema binds no model, so this is a call that the demo model knows.
"""
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 100}


def over_openai(mode: Any, key: str = KEY) -> Any:
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=key, timeout=TIMEOUT_S, max_retries=0)
    return instructor.from_openai(client, mode=mode)


def over_anthropic(key: str = KEY) -> Any:
    client = anthropic.Anthropic(base_url=URL, api_key=key, timeout=TIMEOUT_S, max_retries=0)
    return instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS)


def asking(text: str, kind: Any, **more: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": text}], "response_model": kind, "max_retries": 1}
    return {"model": MODEL, **said, **more}


@flow("chat: structured output by a call")
def by_call() -> str:
    answer = over_openai(instructor.Mode.TOOLS).create(**asking(WEATHER, Weather, **GREEDY))
    return require(answer.city, CITY)


@flow("chat: structured output by a schema")
def by_schema() -> str:
    answer = over_openai(instructor.Mode.JSON_SCHEMA).create(**asking(CAPITAL, Capital, **GREEDY))
    assert isinstance(answer, Capital)
    return str(answer)


@flow("chat: parts of an object in a stream")
def partial() -> str:
    parts = list(over_openai(instructor.Mode.JSON_SCHEMA).create_partial(**asking(CAPITAL, Capital, **GREEDY)))
    assert len(parts) > 1
    assert parts[-1].city in CITIES
    return str(parts[-1])


@flow("chat: structured output, with the completion")
def with_completion() -> str:
    client = over_openai(instructor.Mode.JSON_SCHEMA)
    answer, completion = client.create_with_completion(**asking(CAPITAL, Capital, **GREEDY))
    assert completion.usage.completion_tokens > 1
    return str(answer)


@flow("chat: unknown model")
def unknown_model() -> str:
    client, body = over_openai(instructor.Mode.TOOLS), asking(CAPITAL, Capital) | {"model": NOBODY}
    return require(str(raised(InstructorRetryException, lambda: client.create(**body))), "model_not_found")


@flow("chat: wrong key")
def wrong_key() -> str:
    client = over_openai(instructor.Mode.TOOLS, key=WRONG_KEY)
    error = raised(InstructorRetryException, lambda: client.create(**asking(CAPITAL, Capital)))
    return require(str(error), "invalid_api_key")


@flow("responses: structured output by a call")
def of_responses() -> str:
    client = over_openai(instructor.Mode.RESPONSES_TOOLS)
    answer = client.create(**asking(WEATHER, Weather, temperature=0, max_output_tokens=100))
    return require(answer.city, CITY)


@flow("messages: structured output by a call")
def of_messages() -> str:
    body = asking(WEATHER, Weather, max_tokens=100, extra_body={"temperature": 0})
    return require(over_anthropic().create(**body).city, CITY)


@flow("messages: wrong key")
def wrong_key_of_messages() -> str:
    client = over_anthropic(key=WRONG_KEY)
    error = raised(InstructorRetryException, lambda: client.create(**asking(CAPITAL, Capital, max_tokens=100)))
    return require(str(error), "authentication_error")


run()

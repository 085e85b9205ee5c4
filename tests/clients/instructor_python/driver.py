"""Instructor: answers as objects, over chat completions, responses and messages."""

from typing import Any, Literal

import anthropic
import instructor
import openai
import pydantic
from instructor.core import InstructorRetryException

from tests.clients.flows import CAPITAL, KEY, MODEL, NOBODY, TIMEOUT_S, URL, WRONG_KEY, flow, raised, require, run


class Capital(pydantic.BaseModel):
    """The capital of a country."""

    city: Literal["Rome", "Paris"]


def over_chat(mode: Any, key: str = KEY) -> Any:
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=key, timeout=TIMEOUT_S, max_retries=0)
    return instructor.from_openai(client, mode=mode)


def over_messages(mode: Any, key: str = KEY) -> Any:
    client = anthropic.Anthropic(base_url=URL, api_key=key, timeout=TIMEOUT_S, max_retries=0)
    return instructor.from_anthropic(client, mode=mode)


def read(client: Any, model: str = MODEL, **more: Any) -> Any:
    asked = [{"role": "user", "content": CAPITAL}]
    return client.create(model=model, messages=asked, response_model=Capital, max_retries=1, **more)


def require_read(client: Any, **more: Any) -> str:
    answer = read(client, **more)
    assert isinstance(answer, Capital)
    return str(answer)


@flow("chat: structured output by a call")
def by_call() -> str:
    return require_read(over_chat(instructor.Mode.TOOLS), temperature=0)


@flow("chat: structured output by a schema")
def by_schema() -> str:
    return require_read(over_chat(instructor.Mode.JSON_SCHEMA), temperature=0)


@flow("chat: parts of an object in a stream")
def partial() -> str:
    asked = [{"role": "user", "content": CAPITAL}]
    parts = list(
        over_chat(instructor.Mode.JSON_SCHEMA).create_partial(
            model=MODEL, messages=asked, response_model=Capital, temperature=0, max_retries=1
        )
    )
    assert len(parts) > 1
    require(parts[-1].city, "")
    return str(parts[-1])


@flow("chat: answer, with the completion")
def with_completion() -> str:
    asked = [{"role": "user", "content": CAPITAL}]
    answer, completion = over_chat(instructor.Mode.TOOLS).create_with_completion(
        model=MODEL, messages=asked, response_model=Capital, temperature=0
    )
    assert completion.usage.completion_tokens > 0
    return str(answer)


@flow("chat: unknown model")
def unknown_model() -> str:
    error = raised(InstructorRetryException, lambda: read(over_chat(instructor.Mode.TOOLS), model=NOBODY))
    return require(str(error), "model_not_found")


@flow("chat: wrong key")
def wrong_key() -> str:
    error = raised(InstructorRetryException, lambda: read(over_chat(instructor.Mode.TOOLS, key=WRONG_KEY)))
    return require(str(error), "invalid_api_key")


@flow("responses: structured output")
def over_responses() -> str:
    return require_read(over_chat(instructor.Mode.RESPONSES_TOOLS), temperature=0)


@flow("messages: structured output by a call")
def of_messages() -> str:
    return require_read(over_messages(instructor.Mode.ANTHROPIC_TOOLS), max_tokens=60)


@flow("messages: wrong key")
def wrong_key_of_messages() -> str:
    client = over_messages(instructor.Mode.ANTHROPIC_TOOLS, key=WRONG_KEY)
    error = raised(InstructorRetryException, lambda: read(client, max_tokens=60))
    return require(str(error), "authentication_error")


run()

"""On real engines: an answer whose grammar is slow is ended by itself, and the answers beside it go on."""

import json
import threading
import time
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionMessageParam
from pydantic import BaseModel

from tests.expected import of_kind, present
from tests.hostile.grammars.inputs import SLOW_TO_COMPILE, TWELVE_FOLD
from tests.real_cluster.service import DECODE_PROCESS, Service

LONGEST_GAP_S = 2.0
"""Between two tokens of an honest stream. All bombs may take their burst of 0.1 s of CPU time in one step, on two cores
that also start the processes that compile.
"""
NUM_TOKENS = 600
NUM_BOMBS = 4

SLOW_GRAMMAR = TWELVE_FOLD.replace('"a"', '[a-z ]+ | [a-z]+ " "')


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    sky: Literal["blue", "grey"] | None


def test_slow_grammar_ends_its_own_request_alone(service: Service, client: openai.OpenAI, model: str) -> None:
    worker = service.process(DECODE_PROCESS).pid
    errors: list[openai.APIStatusError | openai.APIError] = []

    def explode() -> None:
        outputs = {"grammar": SLOW_GRAMMAR}
        try:
            client.completions.create(
                model=model,
                prompt="a",
                max_tokens=NUM_TOKENS,
                extra_body={"structured_outputs": outputs, "min_tokens": NUM_TOKENS, "ignore_eos": True},
            )
        except openai.APIError as error:
            errors.append(error)

    stream = client.completions.create(
        model=model,
        prompt="Once",
        max_tokens=NUM_TOKENS,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    bombs = [threading.Thread(target=explode) for _ in range(NUM_BOMBS)]
    for bomb in bombs:
        bomb.start()
    gaps, last = [], time.monotonic()
    for _ in stream:
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
    for bomb in bombs:
        bomb.join()
    assert max(gaps) < LONGEST_GAP_S
    assert [error.code for error in errors] == ["structured_output_failed"] * NUM_BOMBS
    assert service.process(DECODE_PROCESS).pid == worker


def test_schema_that_compiles_too_long_is_refused_while_others_are_answered(client: openai.OpenAI, model: str) -> None:
    format_: Any = {"type": "json_schema", "json_schema": {"name": "slow", "schema": SLOW_TO_COMPILE}}
    question: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
    with pytest.raises(openai.BadRequestError, match="too long to compile"):
        client.chat.completions.create(model=model, messages=question, response_format=format_)
    parsed = client.chat.completions.parse(
        model=model, messages=question, temperature=0, max_tokens=60, response_format=Weather
    )
    assert parsed.choices[0].message.parsed is not None
    assert parsed.choices[0].message.parsed.city in ("Paris", "Rome")


def test_strict_tool_is_called_with_valid_arguments(client: openai.OpenAI, model: str) -> None:
    tool: Any = {
        "type": "function",
        "function": {"name": "get_weather", "parameters": Weather.model_json_schema(), "strict": True},
    }
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[tool],
        tool_choice="required",
        temperature=0,
        max_tokens=120,
    )
    call = of_kind(ChatCompletionMessageFunctionToolCall, present(answer.choices[0].message.tool_calls)[0])
    Weather.model_validate(json.loads(call.function.arguments))

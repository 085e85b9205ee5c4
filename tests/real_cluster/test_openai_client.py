"""The official openai client against real engines: every shape of answer, and every kind of refusal."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from tests.expected import present
from tests.real_cluster.service import Service

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER_TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_chat_answers_a_question(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_adds_up_to_the_whole_answer(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=40)
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert present(chunks[-1].usage).completion_tokens == present(whole.usage).completion_tokens


def test_stream_ends_with_done(service: Service, model: str) -> None:
    body = {"model": model, "messages": QUESTION, "max_tokens": 8, "stream": True}
    response = service.post("/v1/chat/completions", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.strip().split("\n\n")
    assert all(frame.startswith("data: ") for frame in frames)
    assert frames[-1] == "data: [DONE]"
    assert frames.count("data: [DONE]") == 1


def test_completions_stream_and_whole_agree(client: openai.OpenAI, model: str) -> None:
    arguments: dict[str, Any] = {
        "model": model,
        "prompt": "The capital of France is",
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = client.completions.create(**arguments)
    streamed = client.completions.create(**arguments, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == whole.choices[0].text


def test_several_prompts_give_several_choices(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=["one", "two", "three"], max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def messages_of(answer: Any) -> Iterator[tuple[Any, Any]]:
    """Messages with their choices: of a whole answer, or the deltas of a stream, whose types share no base."""
    is_whole = isinstance(answer, ChatCompletion)
    parts: Iterable[Any] = [answer] if is_whole else answer
    for part in parts:
        for choice in part.choices:
            yield (choice.message if is_whole else choice.delta), choice


@pytest.mark.parametrize("stream", [False, True])
def test_n_gives_independent_choices(client: openai.OpenAI, model: str, stream: bool) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, n=3, temperature=2.0, seed=7, max_tokens=16, stream=stream
    )
    texts = ["", "", ""]
    for message, choice in messages_of(answer):
        texts[choice.index] += message.content or ""
    assert len(set(texts)) > 1


def test_seed_makes_sampling_repeatable(client: openai.OpenAI, model: str) -> None:
    texts = {
        client.completions.create(model=model, prompt="Tell me", max_tokens=12, temperature=1.5, seed=11)
        .choices[0]
        .text
        for _ in range(3)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_text_before_it(service: Service, client: openai.OpenAI, model: str, stream: bool) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=60, stop=["Paris"], stream=stream
    )
    parts = list(messages_of(answer))
    text = "".join(message.content or "" for message, _ in parts)
    assert text
    assert "Paris" not in text
    assert parts[-1][1].finish_reason == "stop"


def test_logprobs_of_the_chosen_tokens(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    content = present(present(answer.choices[0].logprobs).content)
    assert len(content) == 5
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content)


def test_echo_with_prompt_logprobs(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="Hello there", max_tokens=1, echo=True, logprobs=1)
    assert answer.choices[0].text.startswith("Hello there")
    token_logprobs = present(present(answer.choices[0].logprobs).token_logprobs)
    assert token_logprobs[0] is None
    assert len(token_logprobs) > 2


def test_logit_bias_forces_a_token(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=[400, 401], max_tokens=3, temperature=0, logit_bias={"700": 100}, logprobs=1
    )
    assert len(set(present(present(answer.choices[0].logprobs).tokens))) == 1


def test_frequency_penalty_keeps_a_story_from_repeating(client: openai.OpenAI, model: str) -> None:
    texts = [
        client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=80,
            temperature=0,
            frequency_penalty=penalty,
        )
        .choices[0]
        .message.content
        for penalty in (0.0, 2.0)
    ]
    repeats = [len(text.split()) / len(set(text.split())) for text in texts if text]
    assert repeats[1] < repeats[0]


def test_json_schema_constrains_the_answer(client: openai.OpenAI, model: str) -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
    )
    assert json.loads(answer.choices[0].message.content or "")["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("stream", [False, True])
def test_tool_call_round_trip(client: openai.OpenAI, model: str, stream: bool) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER_TOOL], temperature=0, max_tokens=80, stream=stream
    )
    name, arguments, finish_reason = "", "", None
    for message, choice in messages_of(answer):
        for call in message.tool_calls or []:
            name, arguments = name + (call.function.name or ""), arguments + (call.function.arguments or "")
        finish_reason = choice.finish_reason or finish_reason
    assert (name, json.loads(arguments), finish_reason) == ("get_weather", {"city": "Paris"}, "tool_calls")


def test_models_are_listed_and_retrieved(client: openai.OpenAI, model: str) -> None:
    assert model in [card.id for card in client.models.list()]
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("nobody")
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, None),
        ({"messages": QUESTION, "temperature": -1}, "temperature"),
        ({"messages": QUESTION, "max_tokens": 1_000_000}, "max_tokens"),
        ({"messages": QUESTION, "top_p": "high"}, "top_p"),
        ({"messages": QUESTION, "kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"messages": QUESTION, "priority": -5}, "priority"),
        ({"messages": QUESTION, "cache_salt": "x"}, "cache_salt"),
        ({"messages": QUESTION, "chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": QUESTION, "vllm_xargs": {"kv_transfer_params": "x"}}, "vllm_xargs"),
        ({"messages": QUESTION, "no_such_field": 1}, "no_such_field"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, None),
        ({"messages": QUESTION, "response_format": {"type": "json_schema"}}, None),
        ({"messages": QUESTION, "stream": True, "n": 0}, None),
        ({"messages": QUESTION, "stream": True, "logit_bias": {"99999999": 1}}, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
    ],
)
def test_bad_input_is_a_400_with_all_four_keys(
    service: Service, model: str, body: dict[str, Any], param: str | None
) -> None:
    response = service.post("/v1/chat/completions", {"model": model, **body})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert param is None or param in (error["param"] or "")


def test_unknown_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nobody", messages=QUESTION)
    assert error.value.code == "model_not_found"


def test_unknown_url_is_a_json_404(service: Service) -> None:
    response = service.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"


def test_requests_are_counted_by_path_and_outcome(service: Service, client: openai.OpenAI, model: str) -> None:
    before = service.metric("baton_requests_total", path="P->D", outcome="finished")
    client.chat.completions.create(model=model, messages=QUESTION, max_tokens=4, extra_headers={"x-baton-path": "P->D"})
    assert service.metric("baton_requests_total", path="P->D", outcome="finished") == before + 1


def test_service_tier_and_headers_say_how_a_request_is_served(
    service: Service, client: openai.OpenAI, model: str
) -> None:
    good = {"slo_class": "batch", "path": "P->D", "result": "good"}
    before = service.metric("baton_goodput_requests_total", **good)
    response = client.chat.completions.with_raw_response.create(
        model=model,
        messages=QUESTION,
        max_tokens=8,
        service_tier="flex",
        extra_headers={"x-baton-path": "P->D", "x-baton-ttft-slo-ms": "20000", "x-baton-tpot-slo-ms": "150"},
    )
    answer = response.parse()
    assert answer.service_tier == "flex"
    assert response.headers["x-baton-slo"] == "class=batch, ttft_ms=20000, tpot_ms=150.0"
    assert service.metric("baton_goodput_requests_total", **good) == before + 1
    (receipt,) = service.of_operators("/baton/receipts?last=1").json()["receipts"]
    assert receipt["request_id"] == answer.id
    assert (receipt["result"], receipt["slo_class"], receipt["placement"]["path"]) == ("good", "batch", "P->D")
    assert 0 < receipt["ttft_s"] < 20
    assert 0 < receipt["tpot_s"] < 0.15
    assert receipt["sources"]["pulled"] > 0


def test_objective_that_is_no_time_is_a_400(service: Service, client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=QUESTION, extra_headers={"x-baton-ttft-slo-ms": "soon"})
    assert error.value.param == "x-baton-ttft-slo-ms"

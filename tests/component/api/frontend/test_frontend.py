"""vLLM's front half over sessions whose tokens a test chooses, asked through the HTTP surface with the demo model."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import cycle
from typing import Any

import httpx
import pytest
import pytest_asyncio

from api.context.token_counter import TokenCounter
from api.frontend.frontend import Frontend
from api.frontend.tokens.windows import COUNTED_WINDOWS
from api.wire.response_headers import EXPOSED
from api.wire.responses.as_chat import chat_messages
from cluster.engine.sampling_params import decode_sampling_params
from cluster.errors import InvalidRequest, Overloaded, WorkerUnreachable
from cluster.messages.generation import FinishReason
from cluster.messages.ids import Path
from tests.component.app_with_fakes import CHAT, COMPLETION, FakeCluster, a_client, an_app
from tests.component.fake_engines import END_OF_TURN, FakeEngines, with_logprobs

MAX_MODEL_LEN = 128
BLOCK_SIZE = 16

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> tuple[FakeEngines, Frontend]:
    engines = FakeEngines()
    return engines, await engines.frontend(MAX_MODEL_LEN, tool_call_parser="hermes")


@pytest.fixture
def engines(started: tuple[FakeEngines, Frontend]) -> FakeEngines:
    started[0].reset()
    return started[0]


@pytest_asyncio.fixture(loop_scope="module")
async def client(started: tuple[FakeEngines, Frontend], engines: FakeEngines) -> AsyncIterator[httpx.AsyncClient]:
    async with a_client(an_app(started[1], FakeCluster(), allow_path_header=True)) as client:
        yield client


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": "Where is Paris?"}]}
    return await client.post(CHAT, json=body | fields)


async def complete(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(COMPLETION, json={"model": "baton-demo", "prompt": "Paris"} | fields)


def choices(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    """The stream's payloads, all but the one terminal frame."""
    assert response.status_code == 200, response.text
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()["error"]


async def test_served_model_is_listed_with_its_limit(client: httpx.AsyncClient) -> None:
    (card,) = (await client.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("baton-demo", "model", MAX_MODEL_LEN)


async def test_chat_answer_is_openai_s_and_nothing_more(client: httpx.AsyncClient) -> None:
    body = (await chat(client)).json()
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris is nice.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert (body["object"], body["model"]) == ("chat.completion", "baton-demo")
    assert body["id"].startswith("chatcmpl-")


async def test_usage_is_what_the_engines_generated(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    usage = (await chat(client)).json()["usage"]
    num_prompt, num_output = len(engines.requests[0].prompt_token_ids), len(engines.deltas)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (num_prompt, num_output)
    assert usage["total_tokens"] == num_prompt + num_output
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2


async def test_chat_stream_says_the_role_then_the_text_then_why_it_ended(
    client: httpx.AsyncClient, engines: FakeEngines
) -> None:
    sent = [chunk["choices"][0] for chunk in chunks(await chat(client, stream=True))]
    assert sent[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in sent) == "Paris is nice."
    assert [choice["finish_reason"] for choice in sent] == [None] * (len(sent) - 1) + ["stop"]
    assert len(sent) == 1 + len(engines.deltas)


async def test_stream_ends_with_usage_when_it_is_asked_for(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    *rest, last = chunks(await chat(client, stream=True, stream_options={"include_usage": True}))
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], len(engines.deltas))
    assert all(chunk.get("usage") is None for chunk in rest)


async def test_completion_continues_the_prompt(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    (choice,) = choices(await complete(client, max_tokens=5))
    assert choice == {"index": 0, "text": "Paris is nice.", "logprobs": None, "finish_reason": "stop"}
    (request,) = engines.requests
    assert engines.tokenizer.decode(request.prompt_token_ids) == "Paris"
    assert decode_sampling_params(request.sampling_params).max_tokens == 5


async def test_completion_streams_the_same_text(client: httpx.AsyncClient) -> None:
    sent = [chunk["choices"][0] for chunk in chunks(await complete(client, stream=True))]
    assert "".join(choice["text"] for choice in sent) == "Paris is nice."
    assert sent[-1]["finish_reason"] == "stop"


async def test_completion_of_several_prompts_answers_each(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    answers = choices(await complete(client, prompt=["Paris", "London"]))
    assert [(choice["index"], choice["text"]) for choice in answers] == [(0, "Paris is nice."), (1, "Paris is nice.")]
    assert len({request.request_id for request in engines.requests}) == 2


async def test_several_answers_come_from_one_request(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    first, second = engines.sequence(0, "Paris is nice."), engines.sequence(1, "London is big.")
    engines.deltas = [delta for pair in zip(first, second, strict=False) for delta in pair]
    engines.deltas += first[len(second) :] + second[len(first) :]
    answers = choices(await chat(client, n=2, temperature=0.7))
    assert [a["message"]["content"] for a in answers] == ["Paris is nice.", "London is big."]
    assert [request.num_sequences for request in engines.requests] == [2]


async def test_several_answers_are_told_apart_in_a_stream(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    engines.deltas = engines.sequence(0, "Paris is nice.") + engines.sequence(1, "London is big.")
    texts = {0: "", 1: ""}
    for chunk in chunks(await chat(client, n=2, temperature=0.7, stream=True)):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {0: "Paris is nice.", 1: "London is big."}


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_string_ends_the_text_before_it(
    client: httpx.AsyncClient, engines: FakeEngines, stream: bool
) -> None:
    engines.says("Paris is nice.", stop_reason="nice")
    response = await complete(client, stop=["nice"], stream=stream)
    sent = [chunk["choices"][0] for chunk in chunks(response)] if stream else choices(response)
    assert "".join(choice["text"] for choice in sent) == "Paris is "
    assert (sent[-1]["finish_reason"], sent[-1]["stop_reason"]) == ("stop", "nice")
    assert decode_sampling_params(engines.requests[0].sampling_params).stop == ["nice"]


async def test_answer_that_reached_its_limit_says_so(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    engines.says("Paris is", finish=FinishReason.LENGTH)
    (choice,) = choices(await chat(client, max_completion_tokens=2))
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Paris is", "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_chat_tokens_come_with_their_alternatives(
    client: httpx.AsyncClient, engines: FakeEngines, stream: bool
) -> None:
    engines.says("Paris", finish=FinishReason.LENGTH)
    engines.deltas = [with_logprobs(delta, other=END_OF_TURN) for delta in engines.deltas]
    response = await chat(client, logprobs=True, top_logprobs=2, stream=stream)
    sent = [chunk["choices"][0] for chunk in chunks(response)] if stream else choices(response)
    entries = [entry for choice in sent if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert "".join(entry["token"] for entry in entries) == "Paris"
    assert [entry["logprob"] for entry in entries] == pytest.approx([-0.1] * len(engines.deltas))
    assert [top["logprob"] for top in entries[0]["top_logprobs"]] == pytest.approx([-0.1, -2.5])


async def test_tool_call_is_parsed_from_the_text(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    engines.says('<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>')
    (choice,) = choices(await chat(client, tools=[TOOL]))
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", {"city": "Paris"})


class Notebook:
    """A state that keeps chat completions in memory."""

    max_item_bytes = 1 << 20

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.stores = self
        self.chat_completions = self

    async def add(self, tenant: str, completion: Any) -> None:
        self.written.append(json.loads(completion.body))


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Paris is nice.", {}),
        ("Paris is nice.", {"n": 2, "temperature": 0.7, "stream_options": None}),
        ("Paris is nice.", {"stop": ["nice"]}),
        ("Paris", {"logprobs": True, "top_logprobs": 2}),
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', {"tools": [TOOL]}),
    ],
    ids=["text", "n", "stop", "logprobs", "tool"],
)
async def test_stream_is_kept_as_the_answer_that_was_not_streamed(
    started: tuple[FakeEngines, Frontend], engines: FakeEngines, text: str, fields: dict[str, Any]
) -> None:
    engines.says(text, stop_reason="nice" if "stop" in fields else None)
    if "n" in fields:
        engines.deltas += engines.sequence(1, "London is big.")
    if "logprobs" in fields:
        engines.deltas = [with_logprobs(delta, other=END_OF_TURN) for delta in engines.deltas]
    notebook = Notebook()
    async with a_client(an_app(started[1], FakeCluster(), state=notebook)) as client:
        plain = chunks(await chat(client, stream=True, **fields))
        streamed = chunks(await chat(client, stream=True, store=True, **fields))
        answered = (await chat(client, store=True, **fields)).json()
    assert [one["choices"][0]["delta"].keys() for one in streamed] == [
        one["choices"][0]["delta"].keys() for one in plain
    ]
    assert [kept["id"] for kept in notebook.written] == [streamed[0]["id"], answered["id"]]
    for kept in notebook.written:
        del kept["id"], kept["created"]
        for choice in kept["choices"]:
            for call in choice["message"].get("tool_calls", ()):
                del call["id"]
    assert notebook.written[0] == notebook.written[1]


async def test_path_header_reaches_the_session(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    body = {"model": "baton-demo", "prompt": "Paris"}
    response = await client.post(COMPLETION, json=body, headers={"x-baton-path": "D"})
    assert engines.forced_paths == [Path.DECODE]
    assert response.headers["x-baton-path"] == "P->D"
    assert response.headers["x-baton-prompt-tokens"] == "computed=3, local=2, pulled=0, offloaded=0"
    assert {name for name in response.headers if name.startswith("x-baton-")} <= set(EXPOSED)


@pytest.mark.parametrize(("tier", "served_as"), [(None, "default"), ("fast", "priority"), ("flex", "flex")])
@pytest.mark.parametrize("ask", [chat, complete])
async def test_answer_says_which_service_tier_it_got(
    client: httpx.AsyncClient, ask: Callable[..., Coroutine[Any, Any, httpx.Response]], tier: str | None, served_as: str
) -> None:
    assert (await ask(client, service_tier=tier)).json()["service_tier"] == served_as


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [chat, complete])
async def test_request_that_no_worker_can_take_is_overloaded(
    client: httpx.AsyncClient,
    engines: FakeEngines,
    ask: Callable[..., Coroutine[Any, Any, httpx.Response]],
    stream: bool,
) -> None:
    engines.deltas, engines.error = [], Overloaded("no decode worker can be reached", 5.0)
    response = await ask(client, stream=stream)
    assert refusal(response, 503)["code"] == "engine_overloaded"
    assert response.headers["retry-after"] == "5"


@pytest.mark.parametrize("ask", [chat, complete])
async def test_stream_that_fails_midway_says_why_and_ends(
    client: httpx.AsyncClient, engines: FakeEngines, ask: Callable[..., Coroutine[Any, Any, httpx.Response]]
) -> None:
    engines.deltas, engines.error = engines.deltas[:2], WorkerUnreachable("worker d0 is gone", "d0")
    last = chunks(await ask(client, stream=True))[-1]
    error = {"message": "worker d0 is gone", "type": "server_error", "param": None, "code": "worker_failed"}
    assert last == {"error": error}


async def test_answer_that_fails_midway_is_an_error(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    engines.deltas, engines.error = engines.deltas[:2], WorkerUnreachable("worker d0 is gone", "d0")
    assert refusal(await chat(client), 503)["message"] == "worker d0 is gone"
    assert engines.num_ended == 1


async def test_engine_that_failed_leaves_nothing_for_the_next_request(
    client: httpx.AsyncClient, engines: FakeEngines
) -> None:
    engines.deltas, engines.error = engines.deltas[:2], WorkerUnreachable("worker d0 is gone", "d0")
    await chat(client)
    engines.reset()
    assert choices(await chat(client))[0]["message"]["content"] == "Paris is nice."


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": "hello"}, "messages", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"top_p": 2}, "top_p", "invalid_value"),
        ({"max_completion_tokens": -1}, "max_tokens", "invalid_value"),
        ({"kv_transfer_params": {}}, "kv_transfer_params", "unsupported_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
    ],
    ids=str,
)
async def test_bad_chat_request_is_refused_by_its_field(
    client: httpx.AsyncClient, engines: FakeEngines, fields: dict[str, Any], param: str, code: str
) -> None:
    error = refusal(await chat(client, **fields))
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert engines.requests == []


@pytest.mark.parametrize("ask", [chat, complete])
async def test_model_that_is_not_served_is_not_found(
    client: httpx.AsyncClient,
    ask: Callable[..., Coroutine[Any, Any, httpx.Response]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    error = refusal(await ask(client, model="other"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "other" in error["message"]
    assert caplog.records == []


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_that_is_too_long_is_refused_as_such(
    client: httpx.AsyncClient, engines: FakeEngines, stream: bool
) -> None:
    too_long = "Paris " * MAX_MODEL_LEN
    for response in (
        await chat(client, messages=[{"role": "user", "content": too_long}], stream=stream),
        await complete(client, prompt=too_long, stream=stream),
    ):
        error = refusal(response)
        assert error["code"] == "context_length_exceeded"
        assert str(MAX_MODEL_LEN) in error["message"]
    assert engines.requests == []


@pytest.mark.parametrize("ask", [chat, complete])
async def test_beam_search_is_refused(
    client: httpx.AsyncClient, ask: Callable[..., Coroutine[Any, Any, httpx.Response]]
) -> None:
    assert refusal(await ask(client, use_beam_search=True, n=2))["param"] == "use_beam_search"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"messages": [{"content": "x"}]}, "messages.0.role"), ({"stop": [1]}, "stop")],
    ids=str,
)
async def test_refused_field_is_named_as_the_client_wrote_it(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    assert refusal(await chat(client, **fields))["param"] == param


async def test_each_tenant_has_its_own_kv_blocks(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    prompt = list(range(100, 100 + 2 * BLOCK_SIZE + 1))
    for key in ("Bearer one", "Bearer one", "Bearer two", None):
        headers = {"authorization": key} if key else {}
        await client.post(COMPLETION, json={"model": "baton-demo", "prompt": prompt}, headers=headers)
    one, again, two, nobody = (request.cache_salt for request in engines.requests)
    assert one == again
    assert len({one, two, nobody}) == 3
    assert nobody is None
    hashes = engines.block_hashes
    assert [len(of_prompt) for of_prompt in hashes] == [2] * 4
    assert hashes[0] == hashes[1]
    assert len({*hashes[0], *hashes[2], *hashes[3]}) == 6


async def test_client_cannot_choose_whose_kv_blocks_it_finds(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    response = await complete(client, cache_salt="mine")
    assert response.status_code == 400
    assert engines.requests == []


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Where is Paris?"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<é>"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in ("Notes", "Hello")]}]},
    {"messages": [{"role": "user", "content": "Look"}], "tools": [TOOL]},
]


@pytest.mark.parametrize("body", CHATS)
async def test_counted_tokens_are_those_that_the_engine_gets(
    client: httpx.AsyncClient, engines: FakeEngines, started: tuple[FakeEngines, Frontend], body: dict[str, Any]
) -> None:
    counted = await started[1].count_tokens({"model": "baton-demo", **body})
    await chat(client, **body)
    assert counted == len(engines.requests[-1].prompt_token_ids)


async def test_prompt_that_is_too_long_is_counted_all_the_same(started: tuple[FakeEngines, Frontend]) -> None:
    texts = ["Paris " * (2 * MAX_MODEL_LEN), "Paris"]
    counts = await started[1].count_texts(texts)
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": texts[0]}]}
    assert await started[1].count_tokens(body) > counts[0] > 2 * MAX_MODEL_LEN > counts[1]
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": texts[0] * COUNTED_WINDOWS}]}
    with pytest.raises(InvalidRequest) as refused:
        await started[1].count_tokens(body)
    assert refused.value.code == "context_length_exceeded"


SAID = ["Where is Paris?", "", "\n", " a\n\n", "é 漢字 🦉", "one word after another " * 8, "\n\n\nnotes:\n- one\n"]


@pytest.mark.parametrize("said", [[text] * 9 for text in SAID] + [SAID])
async def test_messages_are_estimated_at_no_less_than_they_take_and_not_much_more(
    started: tuple[FakeEngines, Frontend], said: list[str]
) -> None:
    frontend = started[1]
    roles = cycle(("user", "assistant"))
    items = [{"id": str(number), **message(next(roles), text)} for number, text in enumerate(said)]
    estimated = sum(await TokenCounter(frontend).in_prompt(items))
    nothing, all_of_them = [
        await frontend.count_tokens({"model": "baton-demo", "messages": chat_messages(these, None)})
        for these in ([message("user", "")], items)
    ]
    assert all_of_them <= nothing + estimated <= all_of_them + 2 * len(items) + 8


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


async def test_tokens_for_a_model_that_is_not_served_are_not_counted(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/responses/input_tokens", json={"model": "other", "input": "Hello"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_input_tokens_are_counted_with_tools(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    body = {"model": "baton-demo", "input": "Look", "tools": [tool], "instructions": "Be brief."}
    counted = await client.post("/v1/responses/input_tokens", json=body)
    await client.post("/v1/responses", json=body | {"store": False})
    assert counted.json()["input_tokens"] == len(engines.requests[-1].prompt_token_ids)

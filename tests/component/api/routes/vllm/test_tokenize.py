"""POST /tokenize and /detokenize over vLLM's front half: they agree with what the engines get, and refuse what would
reach into the service.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from api.frontend.tokens.windows import COUNTED_WINDOWS
from tests.component.app_with_fakes import CHAT, COMPLETION, a_client, an_app
from tests.component.fake_engines import FakeEngines

MODEL_LEN = 512
MOST = COUNTED_WINDOWS * MODEL_LEN
USER = {"role": "user", "content": "Where is Paris?"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
]


@pytest.fixture(scope="module")
def engines() -> FakeEngines:
    return FakeEngines()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(engines: FakeEngines) -> AsyncIterator[httpx.AsyncClient]:
    frontend = await engines.frontend(MODEL_LEN, tool_call_parser="hermes")
    async with a_client(an_app(frontend)) as client:
        yield client


async def asked(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.parametrize("body", [{"messages": [USER]}, {"messages": [USER], "tools": [TOOL]}])
async def test_tokens_of_a_chat_are_those_that_the_engine_gets(
    client: httpx.AsyncClient, engines: FakeEngines, body: dict[str, Any]
) -> None:
    listed = await asked(client, "/tokenize", **body)
    await asked(client, CHAT, model="baton-demo", **body)
    assert listed["tokens"] == engines.requests[-1].prompt_token_ids
    assert (listed["count"], listed["max_model_len"]) == (len(listed["tokens"]), MODEL_LEN)
    assert listed["token_strs"] is None


async def test_tokens_of_a_prompt_become_its_text_again(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    text = "one été 漢字\n"
    listed = await asked(client, "/tokenize", model="baton-demo", prompt=text, return_token_strs=True)
    await asked(client, COMPLETION, model="baton-demo", prompt=text)
    assert listed["tokens"] == engines.requests[-1].prompt_token_ids
    assert len(listed["token_strs"]) == listed["count"]
    assert await asked(client, "/detokenize", model="baton-demo", tokens=listed["tokens"]) == {"prompt": text}


async def test_long_lists_come_back_whole(client: httpx.AsyncClient) -> None:
    (token,) = (await asked(client, "/tokenize", prompt="a"))["tokens"]
    text = await asked(client, "/detokenize", tokens=[token] * MOST)
    assert text == {"prompt": "a" * MOST}
    listed = await asked(client, "/tokenize", prompt=" a" * (MOST - 1), return_token_strs=True)
    assert MODEL_LEN < listed["count"] <= MOST and len(listed["token_strs"]) == listed["count"]


async def test_no_tokens_are_no_text(client: httpx.AsyncClient) -> None:
    assert await asked(client, "/detokenize", tokens=[]) == {"prompt": ""}
    assert (await asked(client, "/tokenize", prompt=""))["count"] == 0


async def test_chat_ends_as_it_is_asked_to(client: httpx.AsyncClient) -> None:
    with_prompt = (await asked(client, "/tokenize", messages=[USER]))["tokens"]
    without = (await asked(client, "/tokenize", messages=[USER], add_generation_prompt=False))["tokens"]
    assert with_prompt[: len(without)] == without and len(without) < len(with_prompt)


REFUSED: list[tuple[str, dict[str, Any], int, str | None, str]] = [
    ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model", "model_not_found"),
    ("/tokenize", {}, 400, "prompt", "missing_required_parameter"),
    ("/tokenize", {"prompt": ["x"]}, 400, "prompt", "invalid_value"),
    ("/tokenize", {"prompt": [1, 2]}, 400, "prompt", "invalid_value"),
    ("/tokenize", {"prompt": "x", "messages": [USER]}, 400, "prompt", "unknown_parameter"),
    ("/tokenize", {"prompt": "x", "unheard": 1}, 400, "unheard", "unknown_parameter"),
    ("/tokenize", {"prompt": "x" * 4_000_000}, 400, "prompt", "context_length_exceeded"),
    ("/tokenize", {"messages": [USER] * 20_000}, 400, "messages", "array_above_max_length"),
    (
        "/tokenize",
        {"messages": [USER | {"content": "one " * MOST}]},
        400,
        "messages",
        "context_length_exceeded",
    ),
    ("/tokenize", {"messages": [{}]}, 400, "messages.0.content", "missing_required_parameter"),
    ("/tokenize", {"messages": [IMAGE]}, 400, "messages.0.content", "unsupported_value"),
    ("/tokenize", {"messages": [USER], "chat_template": "{{ 1 }}"}, 400, "chat_template", "unsupported_parameter"),
    (
        "/tokenize",
        {"messages": [USER], "chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        400,
        "chat_template_kwargs.chat_template",
        "unsupported_parameter",
    ),
    ("/tokenize", {"messages": [USER], "mm_processor_kwargs": {}}, 400, "mm_processor_kwargs", "unsupported_parameter"),
    ("/tokenize", {"messages": [USER], "media_io_kwargs": {}}, 400, "media_io_kwargs", "unsupported_parameter"),
    (
        "/tokenize",
        {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
        400,
        None,
        "invalid_value",
    ),
    ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model", "model_not_found"),
    ("/detokenize", {}, 400, "tokens", "missing_required_parameter"),
    ("/detokenize", {"tokens": "1"}, 400, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": ["1"]}, 400, "tokens", "invalid_type"),
    ("/detokenize", {"tokens": [True]}, 400, "tokens", "invalid_type"),
    ("/detokenize", {"tokens": [1.0]}, 400, "tokens", "invalid_type"),
    ("/detokenize", {"tokens": [[1]]}, 400, "tokens", "invalid_type"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": [1_000_000]}, 400, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": [2**63]}, 400, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": [2**200]}, 400, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": [1] * (MOST + 1)}, 400, "tokens", "array_above_max_length"),
    ("/detokenize", {"tokens": [1], "skip_special_tokens": True}, 400, "skip_special_tokens", "unknown_parameter"),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"), REFUSED, ids=[f"{path} {body!s:.60}" for path, body, *_ in REFUSED]
)
async def test_wrong_body_is_refused(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code), error


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize("content", [b"", b"[1]", b"1", b'{"tokens"', b'{"messages":' + b"[" * 1000, b"\xff"])
async def test_what_is_no_object_is_refused(client: httpx.AsyncClient, path: str, content: bytes) -> None:
    assert (await client.post(path, content=content)).status_code == 400


async def test_deep_values_for_the_template_are_refused(client: httpx.AsyncClient) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    content = json.dumps({"messages": [USER], "chat_template_kwargs": {"x": deep}})
    assert (await client.post("/tokenize", content=content)).status_code == 400

"""An exception that nobody has foreseen: its client is told that the server failed, its text is in the log alone."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from cluster.errors import UNFORESEEN
from tests.component.app_with_fakes import CHAT, COMPLETION, FakeCluster, a_client, an_app
from tests.component.fake_engines import FakeEngines

SECRET = "/srv/models/of-another-customer.bin"
TOOL = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "x"}]
REQUESTS: list[Any] = [
    pytest.param(CHAT, {"messages": MESSAGES}, id="chat"),
    pytest.param(CHAT, {"messages": MESSAGES, "tools": [TOOL]}, id="chat with tools"),
    pytest.param(COMPLETION, {"prompt": "x"}, id="completion"),
    pytest.param(COMPLETION, {"prompt": ["x", "y"]}, id="completion of two prompts"),
    pytest.param("/v1/responses", {"input": "x", "store": False}, id="response"),
]

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines() -> FakeEngines:
    return FakeEngines()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(engines: FakeEngines) -> AsyncIterator[httpx.AsyncClient]:
    frontend = await engines.frontend(128, tool_call_parser="hermes")
    async with a_client(an_app(frontend, FakeCluster())) as client:
        yield client


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, KeyError])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("url", "body"), REQUESTS)
async def test_text_of_the_exception_stays_here(
    client: httpx.AsyncClient,
    engines: FakeEngines,
    caplog: pytest.LogCaptureFixture,
    url: str,
    body: dict[str, Any],
    stream: bool,
    kind: type[Any],
) -> None:
    engines.reset()
    engines.error = kind(SECRET)
    answer = await client.post(url, json={"model": "baton-demo", "stream": stream} | body)
    assert UNFORESEEN in answer.text
    assert SECRET not in answer.text
    assert SECRET in caplog.text
    if not stream:
        error = answer.json()["error"]
        assert error["message"] == UNFORESEEN
        assert (answer.status_code, error.get("type")) == (500, "server_error") or answer.json()["status"] == "failed"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_exception_before_the_first_token_is_told_alike(
    client: httpx.AsyncClient, engines: FakeEngines, stream: bool
) -> None:
    engines.reset()
    engines.deltas, engines.error = [], RuntimeError(SECRET)
    answer = await client.post(CHAT, json={"model": "baton-demo", "stream": stream, "messages": MESSAGES})
    assert answer.status_code == 500
    assert json.loads(answer.text)["error"]["message"] == UNFORESEEN

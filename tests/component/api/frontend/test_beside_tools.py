"""Tools and a schema in one request: what vLLM must know of the schema is found out without compiling it."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from cluster.engine.sampling_params import decode_sampling_params
from tests.component.app_with_fakes import CHAT, FakeCluster, a_client, an_app
from tests.component.fake_engines import FakeEngines

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
    pytest.mark.asyncio(loop_scope="module"),
]

LONGEST_HOLD_S = 0.5
"""Of the event loop. xgrammar takes seconds for COSTLY."""
COSTLY = {"type": "object", "properties": {"a": {"type": "string", "pattern": "a{10000}"}}, "required": ["a"]}
KNOWN = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
UNKNOWN = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
TOOL = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": KNOWN}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines() -> FakeEngines:
    return FakeEngines()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(engines: FakeEngines) -> AsyncIterator[httpx.AsyncClient]:
    frontend = await engines.frontend(512, tool_call_parser="hermes")
    async with a_client(an_app(frontend, FakeCluster())) as client:
        yield client


async def asks(client: httpx.AsyncClient, schema: dict[str, Any]) -> httpx.Response:
    body = {
        "model": "baton-demo",
        "messages": [{"role": "user", "content": "Where is Paris?"}],
        "tools": [TOOL],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    }
    return await client.post(CHAT, json=body)


async def longest_hold_s(until: asyncio.Event) -> float:
    """In CPU time: a busy machine does not lengthen it."""
    longest_s, last = 0.0, time.thread_time()
    while not until.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest_s, last = max(longest_s, now - last), now
    return longest_s


async def test_costly_schema_beside_tools_holds_up_nobody_else(client: httpx.AsyncClient) -> None:
    await asks(client, KNOWN)  # what is imported and started once
    is_over = asyncio.Event()
    watching = asyncio.create_task(longest_hold_s(is_over))
    await asks(client, COSTLY)
    is_over.set()
    assert await watching < LONGEST_HOLD_S


@pytest.mark.parametrize(("schema", "kinds"), [(KNOWN, {"structural_tag"}), (UNKNOWN, {"json"})], ids=["known", "not"])
async def test_both_are_followed_where_xgrammar_knows_every_keyword(
    client: httpx.AsyncClient, engines: FakeEngines, schema: dict[str, Any], kinds: set[str]
) -> None:
    response = await asks(client, schema)
    assert response.status_code == 200, response.text
    outputs = decode_sampling_params(engines.requests[-1].sampling_params).structured_outputs
    assert {kind for kind in ("json", "structural_tag") if getattr(outputs, kind) is not None} == kinds

"""Calls of tools with long arguments, streamed: whole, and in CPU time that grows with their length and no faster."""

import json
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.component.app_with_fakes import CHAT, FakeCluster, a_client, an_app
from tests.component.fake_engines import FakeEngines

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
    pytest.mark.asyncio(loop_scope="module"),
]

TOOL = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
STEEPEST = 5.0
"""Times that four times as long a call may cost: 4 in proportion to its length, 7 where all is parsed per token."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines() -> FakeEngines:
    return FakeEngines()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(engines: FakeEngines) -> AsyncIterator[httpx.AsyncClient]:
    frontend = await engines.frontend(8192, tool_call_parser="hermes")
    async with a_client(an_app(frontend, FakeCluster())) as client:
        yield client


async def called(client: httpx.AsyncClient, engines: FakeEngines, num_items: int, n: int = 1) -> tuple[str, int, float]:
    """The arguments of the call, the number of events that they came in, and the CPU time that it took in seconds."""
    arguments = json.dumps({"a": [{"k": 1}] * num_items})
    engines.says(f'<tool_call>\n{{"name": "note", "arguments": {arguments}}}\n</tool_call>')
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "stream": True}
    began = time.process_time()
    text = (await client.post(CHAT, json=body | {"n": n})).text
    seconds = time.process_time() - began
    parts: list[str] = [""] * n
    num_events = 0
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                parts[choice["index"]] += call["function"].get("arguments") or ""
                num_events += 1
    assert all(json.loads(part) == json.loads(arguments) for part in parts)
    return parts[0], num_events, seconds


@pytest.mark.parametrize("n", [1, 2])
async def test_long_arguments_come_whole(client: httpx.AsyncClient, engines: FakeEngines, n: int) -> None:
    await called(client, engines, 400, n)


async def test_first_tokens_come_one_by_one(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    _, num_events, _ = await called(client, engines, 60)
    assert num_events > 300


async def test_each_token_of_a_long_call_costs_no_more_than_those_of_a_short_one(
    client: httpx.AsyncClient, engines: FakeEngines
) -> None:
    await called(client, engines, 10)  # what is made once
    short = min([(await called(client, engines, 300))[2] for _ in range(3)])
    long = min([(await called(client, engines, 1200))[2] for _ in range(3)])
    assert long < STEEPEST * short

"""The agents of bench/retention/real_agents.py against a server that speaks just enough HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bench.retention.agent_figures import AgentLoad
from bench.retention.agent_load import TOOL, AgentLoop, blank_tokens
from cluster.repository import REPO_ROOT
from tests.expected import present

MODEL = str(REPO_ROOT / "conf/models/baton-demo")
LOAD = AgentLoad(
    ports=(),
    is_sticky=True,
    tasks_per_s=20.0,
    chats_per_s=20.0,
    duration_s=0.2,
    gap_s=0.02,
    most_gap_s=10.0,
    num_steps=3,
    instruction_words=20,
    question_words=10,
    result_words=5,
    chat_words=7,
    chat_output_tokens=4,
    seed=1,
)


def events(arguments: str) -> list[dict[str, Any]]:
    """A call of the tool in two parts, and the usage."""
    parts: list[dict[str, Any]] = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": TOOL, "arguments": ""}},
        {"index": 0, "function": {"arguments": arguments}},
    ]
    common = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    cached = {"prompt_tokens_details": {"cached_tokens": 32}}
    return [
        *({**common, "choices": [{"index": 0, "delta": {"tool_calls": [part]}}]} for part in parts),
        {**common, "choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 4, "total_tokens": 54, **cached}},
    ]


class Server:
    """Calls the tool in each answer."""

    def __init__(self, arguments: str = '{"path": "a.py"}', status: str = "200 OK", num_refused: int = 0) -> None:
        """`num_refused`: how many requests are refused, to come back after 0.3 s."""
        self.bodies: list[dict[str, Any]] = []
        self._num_refused = num_refused
        self.answering: list[asyncio.Task[Any]] = []
        self._arguments = arguments
        self._status = status

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answering.append(present(asyncio.current_task()))
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        if len(self.bodies) <= self._num_refused:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0.3\r\nContent-Length: 0\r\n\r\n")
            return
        writer.write(f"HTTP/1.1 {self._status}\r\nContent-Type: text/event-stream\r\n".encode())
        writer.write(b"Connection: close\r\n\r\n")
        for event in events(self._arguments):
            await asyncio.sleep(0.02)
            writer.write(b"data: %b\n\n" % json.dumps(event).encode())
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[AgentLoad]:
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    yield replace(LOAD, ports=(listener.sockets[0].getsockname()[1],))
    listener.close()
    await asyncio.gather(*server.answering, return_exceptions=True)  # its client may have left


async def test_each_step_has_the_step_before_with_its_call_and_a_result() -> None:
    async with listening(server := Server()) as load:
        loop = AgentLoop(MODEL)
        await loop.prepare(load)
        await loop.run()
        asked = await loop.collect()
    of_agents = [body["messages"] for body in server.bodies if "tools" in body]
    tasks = {messages[1]["content"] for messages in of_agents}
    assert len(of_agents) == 3 * len(tasks) > 0
    for task in tasks:
        first, second, third = (messages for messages in of_agents if messages[1]["content"] == task)
        assert [message["role"] for message in third] == ["system", "user", *["assistant", "tool"] * 2]
        assert third[:4] == second and second[:2] == first
        assert second[2]["tool_calls"][0]["function"] == {"name": TOOL, "arguments": '{"path": "a.py"}'}
    assert [one.step for one in asked if one.is_agent] == [0, 1, 2] * len(tasks)
    assert len(asked) == len(server.bodies) > len(of_agents)
    assert {(one.num_prompt, one.num_hits, one.num_tries) for one in asked} == {(50, 32, 1)}
    # Each part of an answer comes 20 ms after what was before it, and four tokens have three times between them.
    assert all(one.ttft_s > 0.015 and one.ttft_s + 3 * one.tpot_s > 0.035 for one in asked)
    assert any(one.tpot_s > 0 for one in asked)


async def test_request_that_is_refused_comes_back_and_its_wait_counts() -> None:
    async with listening(Server(num_refused=2)) as load:
        loop = AgentLoop(MODEL)
        await loop.prepare(load)
        await loop.run()
        asked = await loop.collect()
    assert sorted(one.num_tries for one in asked)[-3:] in ([1, 2, 2], [1, 1, 3])
    assert all(one.ttft_s > 0.3 * (one.num_tries - 1) for one in asked)


async def test_every_system_is_asked_the_same() -> None:
    seen = []
    for _ in range(2):
        async with listening(server := Server()) as load:
            loop = AgentLoop(MODEL)
            await loop.prepare(load)
            await loop.run()
        seen.append(sorted(json.dumps(body) for body in server.bodies))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "server", [Server(arguments='{"path": '), Server(status="400 Bad Request")], ids=["cut off", "refused"]
)
async def test_request_that_fails_ends_the_load(server: Server) -> None:
    async with listening(server) as load:
        loop = AgentLoop(MODEL)
        await loop.prepare(load)
        with pytest.raises(RuntimeError, match="a request failed"):
            await loop.run()


def test_blank_tokens_are_those_without_a_visible_character() -> None:
    blanks = blank_tokens(MODEL)
    assert 0 < len(blanks) < 100

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

    def __init__(self, arguments: str = '{"path": "a.py"}', status: str = "200 OK") -> None:
        self.bodies: list[dict[str, Any]] = []
        self.port = 0
        self._arguments = arguments
        self._status = status

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(
            f"HTTP/1.1 {self._status}\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n".encode()
        )
        for event in events(self._arguments):
            writer.write(b"data: %b\n\n" % json.dumps(event).encode())
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[AgentLoad]:
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    yield replace(LOAD, ports=(server.port,))
    listener.close()
    await listener.wait_closed()


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
    assert {(one.num_prompt, one.num_hits) for one in asked} == {(50, 32)}


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

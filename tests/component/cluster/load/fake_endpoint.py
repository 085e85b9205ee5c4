"""An endpoint of OpenAI's API with known latencies, and one that does what no endpoint should."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from cluster.load.client.endpoint import Endpoint

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
MODEL = "a-model"

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FakeEndpoint:
    """Answers each request with as many tokens as it asks for, at these times."""

    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens_per_event: int = 1
    words_of_two: frozenset[str] = frozenset()
    """Words that are two tokens. All others are one."""
    template_tokens: int = 3
    """Tokens of the template for each message."""
    has_usage: bool = True
    cached_tokens: int | None = None
    instead: Answer | None = None
    """Answers in place of the endpoint."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Those of the streamed requests."""
    heads: list[bytes] = field(default_factory=list)
    closes_after_answer: bool = False
    """Ends the connection after each answer, without saying so."""
    num_connections: int = 0
    num_open: int = 0
    crowded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when two requests are open."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an answer has been sent."""
    most_open: int = 0
    port: int = 0
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """One for each connection."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.parse(f"http://127.0.0.1:{self.port}/v1")

    @property
    def url(self) -> str:
        return self.endpoint.url

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        try:
            is_first = True
            while is_first or not self.closes_after_answer:
                is_first = False
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                body = json.loads(await reader.readexactly(int(length))) if length else {}
                await self._answer(head, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the endpoint ends
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"GET /v1/models"):
            write_json(writer, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif not body.get("stream"):
            write_json(writer, {"id": "x", "usage": self._usage(body, 1)})
        else:
            self.heads.append(head)
            self.bodies.append(body)
            self.num_open += 1
            self.most_open = max(self.most_open, self.num_open)
            if self.num_open >= 2:
                self.crowded.set()
            try:
                await (self.instead or self._stream)(body, writer)
            finally:
                self.num_open -= 1
                self.ended.set()
        await writer.drain()

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        tokens = body.get("max_tokens") or body.get("max_output_tokens") or 1
        is_responses = "input" in body
        writer.write(STREAM_HEAD)
        if "messages" in body:
            write_event(writer, {"id": "c-1", "choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await writer.drain()
        await asyncio.sleep(self.ttft_s)
        for number in range(0, tokens, self.tokens_per_event):
            if number:
                await asyncio.sleep(self.itl_s * min(self.tokens_per_event, tokens - number))
            write_event(writer, token_event(body, "word "))
            await writer.drain()
        usage = self._usage(body, tokens) if self.has_usage else None
        if is_responses:
            write_event(writer, {"type": "response.completed", "response": {"id": "r-1", "usage": usage}})
        else:
            write_event(writer, {"id": "c-1", "choices": [{"delta": {}, "text": "", "finish_reason": "length"}]})
            if usage:
                write_event(writer, {"id": "c-1", "choices": [], "usage": usage})
            write_data(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")

    def _usage(self, body: dict[str, Any], tokens: int) -> dict[str, Any]:
        messages = body.get("messages") or body.get("input") or [{"content": body.get("prompt", "")}]
        words = [word for message in messages for word in message["content"].split(" ")]
        prompt = len(words) + sum(word in self.words_of_two for word in words) + self.template_tokens * len(messages)
        details = {"cached_tokens": self.cached_tokens}
        if "input" in body:
            return {"input_tokens": prompt, "output_tokens": tokens, "input_tokens_details": details}
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "prompt_tokens_details": details}


def token_event(body: dict[str, Any], text: str) -> dict[str, Any]:
    if "messages" in body:
        return {"id": "c-1", "choices": [{"index": 0, "delta": {"content": text}}]}
    if "input" in body:
        return {"type": "response.output_text.delta", "delta": text}
    return {"id": "c-1", "choices": [{"index": 0, "text": text}]}


def write_event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    write_data(writer, json.dumps(event).encode())


def write_data(writer: asyncio.StreamWriter, data: bytes) -> None:
    write_chunk(writer, b"data: " + data + b"\n\n")


def write_chunk(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))


def write_json(writer: asyncio.StreamWriter, content: dict[str, Any], status: str = "200 OK", head: str = "") -> None:
    body = json.dumps(content).encode()
    lines = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{head}\r\n"
    writer.write(lines.encode() + body)


@asynccontextmanager
async def running(fake: FakeEndpoint) -> AsyncIterator[FakeEndpoint]:
    listener = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = listener.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        listener.close()
        for task in fake.tasks:
            task.cancel()
        await asyncio.gather(*fake.tasks)
        await asyncio.sleep(0)  # aborted transports close in the next turn of the loop

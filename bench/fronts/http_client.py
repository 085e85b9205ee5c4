"""The load on a system that speaks HTTP: streamed chat completions over plain sockets, one connection per request.

Made to be cheap, because it shares the machine with what it measures: requests are encoded beforehand, and of the
answer only the last event is parsed.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from multiprocessing.connection import Connection
from typing import Any, cast

import httptools
import uvloop

from bench.fronts.load import ClosedLoop, Load, Request, Trace, obey

HOST = "127.0.0.1"
_ROLES = ("user", "assistant")
_USAGE_EVENT = b'"choices":[]'
"""The event that `include_usage` adds at the end has no choices."""


class FailedRequest(RuntimeError):
    """No whole answer came."""

    def __init__(self, status: int, message: str) -> None:
        """`status`: of HTTP; 0 without one."""
        super().__init__(message)
        self.status = status


class HttpClient:
    def __init__(self, model: str) -> None:
        self._model = model

    def prepare(self, load: Load) -> list[Request]:
        assert load.port is not None
        return [
            self._request(load.port, encoded(self._model, [prompt], load.max_tokens, {})) for prompt in load.prompts
        ]

    def _request(self, port: int, request: bytes) -> Request:
        return lambda: exchanged(port, request)


def encoded(
    model: str, messages: Sequence[str], max_tokens: int, headers: Mapping[str, str], priority: int | None = None
) -> bytes:
    """A whole HTTP request for a streamed chat completion. `messages`: the user's and the assistant's in turn.
    `priority`: vLLM's, which serves less first.
    """
    fields: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": role, "content": text} for role, text in zip(itertools.cycle(_ROLES), messages, strict=False)
        ],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,  # else a special token is a gap where a server sends no empty frame
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if priority is not None:
        fields["priority"] = priority
    body = json.dumps(fields).encode()
    further = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{further}Connection: close\r\n\r\n"
    )
    return head.encode() + body


async def exchanged(port: int, request: bytes) -> Trace:
    """Raises FailedRequest, and OSError without a connection."""
    loop = asyncio.get_running_loop()
    exchange = _Exchange(request, loop.create_future())
    await loop.create_connection(lambda: exchange, HOST, port)
    try:
        return await exchange.done
    finally:
        exchange.close()


class _Exchange(asyncio.Protocol):
    """One request and its streamed answer. httptools calls the `on_` methods."""

    def __init__(self, encoded: bytes, done: "asyncio.Future[Trace]") -> None:
        self.done = done
        self._encoded = encoded
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._usage = b""
        self._arrivals: list[float] = []
        self._started_at = self._read_at = time.perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._encoded)

    def data_received(self, data: bytes) -> None:
        self._read_at = time.perf_counter()
        self._parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self._body += part
        *events, rest = self._body.split(b"\n\n")
        self._body = rest
        for event in events:
            if _USAGE_EVENT in event:
                self._usage = bytes(event)
            elif event.startswith(b"data: {") and self._arrivals[-1:] != [self._read_at]:
                self._arrivals.append(self._read_at)

    def on_message_complete(self) -> None:
        self.close()
        status = self._parser.get_status_code()
        if status != HTTPStatus.OK or not self._usage:
            self._fail(f"status {status}: {self._body.decode(errors='replace')}", status)
            return
        last = json.loads(self._usage.removeprefix(b"data: "))
        usage, answer_id = last["usage"], last["id"]
        if not self.done.done():
            self.done.set_result(
                Trace(
                    self._started_at,
                    tuple(self._arrivals),
                    usage["completion_tokens"],
                    usage["prompt_tokens"],
                    answer_id,
                )
            )

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection ended before the answer: {error}")

    def close(self) -> None:
        self._transport.close()

    def _fail(self, message: str, status: int = 0) -> None:
        if not self.done.done():
            self.done.set_exception(FailedRequest(status, message))


def main() -> None:
    descriptor, model = sys.argv[1:]
    uvloop.run(obey(Connection(int(descriptor)), ClosedLoop(HttpClient(model))))


if __name__ == "__main__":
    main()

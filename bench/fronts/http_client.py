"""The load on a system that speaks HTTP: streamed chat completions over plain sockets, one connection per request.

Requests are encoded beforehand, because the load shares the machine with what it measures. The answers are read by the
client of `baton load`.
"""

import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from bench.fronts.load import ClosedLoop, Load, Request, Trace, obey
from cluster.load.client.client import LoadClient
from cluster.load.client.endpoint import Endpoint

HOST = "127.0.0.1"
_ROLES = ("user", "assistant")
LIMIT_S = 600.0
"""Seconds after which a request of a closed loop is given up."""


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
    """Raises FailedRequest, and OSError without a connection or a whole answer."""
    client = LoadClient(Endpoint(is_tls=False, host=HOST, port=port, base="/v1"))
    started_at = time.perf_counter()
    try:
        exchange = await client.exchange(request, LIMIT_S)
    except ValueError as error:
        raise FailedRequest(0, str(error)) from error
    stream = exchange.stream
    if stream.num_output is None or stream.num_prompt is None or stream.first_at is None:
        text = exchange.whole.decode(errors="replace")
        status = 0 if exchange.status == HTTPStatus.OK else exchange.status
        raise FailedRequest(status, f"status {exchange.status}: {stream.error or text}")
    arrivals = tuple(itertools.accumulate(stream.gaps_s, initial=stream.first_at))
    return Trace(started_at, arrivals, stream.num_output, stream.num_prompt, stream.answer_id)


def main() -> None:
    descriptor, model = sys.argv[1:]
    uvloop.run(obey(Connection(int(descriptor)), ClosedLoop(HttpClient(model))))


if __name__ == "__main__":
    main()

"""A client that does not read: it loses its request, is told so, and nobody else notices."""

import asyncio
import json
import socket
from http.client import HTTPResponse

import httpx

from tests.real_cluster.service import Service, wait_for

MAX_TOKENS = 3500


async def test_client_that_does_not_read_loses_its_request_and_harms_no_other(service: Service, model: str) -> None:
    aborted = service.metric("baton_requests_total", outcome="aborted")
    generated = service.metric("vllm:generation_tokens_total", deployment="decode")
    slow = await asyncio.to_thread(_ask_without_reading, service, model)
    num_other = await _tokens_of_another_stream(service, model)
    await asyncio.to_thread(wait_for, service.is_idle, 60)
    generated = service.metric("vllm:generation_tokens_total", deployment="decode") - generated

    assert num_other == 300
    assert 500 < generated - num_other < MAX_TOKENS - 100
    frames = (await asyncio.to_thread(_read_to_the_end, slow)).split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    assert json.loads(frames[-3].removeprefix("data: "))["error"]["code"] == "client_too_slow"
    texts = [json.loads(frame.removeprefix("data: "))["choices"] for frame in frames[:-3]]
    assert len(texts) > 100
    assert all(choice["finish_reason"] is None for (choice,) in texts)
    await asyncio.to_thread(
        wait_for, lambda: service.metric("baton_requests_total", outcome="aborted") == aborted + 1, 5
    )


def _ask_without_reading(service: Service, model: str) -> socket.socket:
    body = json.dumps(
        {"model": model, "prompt": "Once", "stream": True, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    ).encode()
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "",
        "",
    ]
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", service.port))
    connection.sendall("\r\n".join(head).encode() + body)
    return connection


async def _tokens_of_another_stream(service: Service, model: str) -> int:
    body = {"model": model, "prompt": "Twice", "stream": True, "max_tokens": 300, "ignore_eos": True}
    async with (
        httpx.AsyncClient(base_url=service.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body | {"stream_options": {"include_usage": True}}) as response,
    ):
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    return int(json.loads(lines[-2].removeprefix("data: "))["usage"]["completion_tokens"])


def _read_to_the_end(connection: socket.socket) -> str:
    response = HTTPResponse(connection)
    with connection:
        response.begin()
        return response.read().decode()

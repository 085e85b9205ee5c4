"""Clients that leave: both engines stop working for them and hold nothing of theirs."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.real_cluster.service import Service, wait_for

FREED_WITHIN_S = 10.0
HANDED_OVER = {"x-baton-path": "P->D"}
LONG = {"max_tokens": 3000, "ignore_eos": True, "temperature": 1.0}


@pytest.fixture
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
        yield http


async def test_leaving_mid_stream_frees_both_engines(service: Service, http: httpx.AsyncClient, model: str) -> None:
    aborted = service.metric("baton_requests_total", outcome="aborted")
    body = {"model": model, "prompt": _unique_prompt(600, 1), "stream": True, **LONG}
    async with http.stream("POST", "/v1/completions", json=body, headers=HANDED_OVER) as response:
        lines = response.aiter_lines()
        for _ in range(6):
            await anext(lines)
        assert service.metric("vllm:num_requests_running", deployment="decode") == 1
    await asyncio.to_thread(wait_for, service.is_idle, FREED_WITHIN_S)
    assert service.metric("baton_requests_total", outcome="aborted") == aborted + 1


async def test_leaving_a_whole_answer_frees_both_engines(service: Service, http: httpx.AsyncClient, model: str) -> None:
    body = {"model": model, "prompt": _unique_prompt(600, 2), **LONG}
    asking = asyncio.create_task(http.post("/v1/completions", json=body, headers=HANDED_OVER))
    await asyncio.to_thread(
        wait_for, lambda: service.metric("vllm:num_requests_running", deployment="decode") == 1, FREED_WITHIN_S
    )
    asking.cancel()
    await asyncio.to_thread(wait_for, service.is_idle, FREED_WITHIN_S)


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.06, 0.1, 0.2])
async def test_leaving_before_the_first_token_frees_both_engines(
    service: Service, http: httpx.AsyncClient, model: str, delay_s: float
) -> None:
    """At moments all along placement, prefill and handoff; several at a time, so that some are still queued."""
    seed = 10 + int(delay_s * 1000) * 10
    bodies = [{"model": model, "prompt": _unique_prompt(2000, seed + i), "stream": True, **LONG} for i in range(6)]
    connections = [await _send(service, body) for body in bodies]
    await asyncio.sleep(delay_s)
    for writer in connections:
        writer.transport.abort()
    # Served after all of them: whatever of theirs reaches an engine has reached it now
    await http.post("/v1/completions", json={"model": model, "prompt": "Hello", "max_tokens": 1})
    await asyncio.to_thread(wait_for, service.is_idle, FREED_WITHIN_S)


async def _send(service: Service, body: dict[str, object]) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", service.port)
    payload = json.dumps(body).encode()
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "x-baton-path: P->D",
        f"Content-Length: {len(payload)}",
        "",
        "",
    ]
    writer.write("\r\n".join(head).encode() + payload)
    await writer.drain()
    return writer


def _unique_prompt(length: int, seed: int) -> list[int]:
    return [300 + (seed * 104729 + i * i * 13 + i * 7) % 1000 for i in range(length)]

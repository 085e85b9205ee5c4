"""Any bytes at the HTTP listener, and any body at any route: a well-behaved client beside them is served at once."""

import asyncio
import json
import os
import random
import re
import time
import tracemalloc
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from starlette.routing import Route

from tests.component.fake_engines import FakeEngines
from tests.component.surface import CHAT, COMPLETION, a_client, an_app
from tests.edge.http.wire import GET, Wire, listening, post

FUZZ_MINUTES = float(os.environ.get("BATON_FUZZ_MINUTES", "2"))
PATIENCE_S = 1.0
"""A well-behaved client never waits longer."""
GROWTH_BYTES = 4 << 20
"""What Python's own caches may take more after the first hundreds of requests."""
SEEDS = [
    GET,
    post(b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}'),
    post(b"", b"Expect: 100-continue", length=2) + b"{}",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n",
    b"HEAD http://localhost/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
]
PIECES = [b"\r\n", b"\n", b"\0", b":", b"0", b" ", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\xff"]
PIECES += [b"Host: evil.example\r\n", b"Authorization: Basic x\r\n", b"a" * 5000, b"HTTP/9.9", b"%00", b"[" * 100]


def mutated(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(2000))
    said = bytearray(b"".join(chance.choices(SEEDS, k=chance.randint(1, 4))))
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(said) + 1)
        match chance.randrange(3):
            case 0:
                said[at:at] = chance.choice(PIECES)
            case 1:
                del said[at : at + chance.randint(1, 20)]
            case 2:
                said[at : at + 1] = chance.randbytes(1)
    return bytes(said)


async def one_stranger(wire: Wire, chance: random.Random) -> None:
    """Says it in pieces, and leaves in one way or the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
    said = mutated(chance)
    try:
        while said:
            size = chance.randint(1, len(said))
            writer.write(said[:size])
            await writer.drain()
            said = said[size:]
        if chance.random() < 0.5:
            writer.write_eof()
        answers = await asyncio.wait_for(reader.read(1 << 20), chance.choice([0.001, 0.05]))
        assert not answers.startswith((b"HTTP/1.1 500", b"HTTP/1.1 502", b"HTTP/1.1 504"))
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


async def well_behaved(wire: Wire) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert (await wire.asked(post(b"{}"))).status == 200
    wire.close()


async def strangers(seconds: float, seed: int) -> None:
    chance = random.Random(seed)
    # Nothing that times out within the test: what a stranger has left must not hinder others
    async with listening(max_ongoing_requests=4) as wire:
        base, ends_at = 0, time.monotonic() + seconds
        tracemalloc.start()
        try:
            while time.monotonic() < ends_at:
                await asyncio.gather(*(one_stranger(wire, chance) for _ in range(20)), well_behaved(wire))
                base = base or tracemalloc.get_traced_memory()[0]
            assert tracemalloc.get_traced_memory()[0] < base + GROWTH_BYTES
        finally:
            tracemalloc.stop()
        async with asyncio.timeout(5):
            while wire.num_open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the kernel has told of all who have left


@pytest.mark.parametrize("seed", range(2))
async def test_any_bytes_at_the_listener_hurt_nobody(seed):
    await strangers(3.0, seed)


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 120)
async def test_any_bytes_at_the_listener_for_minutes():
    await strangers(60 * FUZZ_MINUTES, random.randrange(1 << 30))


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    frontend = await FakeEngines().frontend(4096, tool_call_parser="hermes")
    async with a_client(an_app(frontend)) as client:
        yield client


WORDS = "user assistant tool system text function image_url auto none required json_schema message".split()  # noqa: SIM905
WORDS += ["baton-demo", "", "a" * 3000, "\ud83d", "\0", "http://127.0.0.1:1/", "resp_1", "conv_1", "default"]
NUMBERS = [0, 1, -1, 2, 3.5, 1e308, -(2**63), 2**63, 2**200, float("nan"), float("inf")]
FIELDS = """
    model messages prompt input role content type tools tool_choice n stop stream logit_bias temperature top_p
    max_tokens min_tokens seed echo response_format metadata include reasoning text background conversation store
    items function name arguments parameters tool_calls stream_options service_tier truncation previous_response_id
    bad_words repetition_detection documents chat_template_kwargs url id
""".split()  # noqa: SIM905
"""Without those of log probabilities, which the fake engines do not have."""
PATH_PARAMETER = re.compile(r"\{\w+(:path)?\}")
VALID = {
    CHAT: {"model": "baton-demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    COMPLETION: {"model": "baton-demo", "prompt": "Hello", "max_tokens": 4},
    "/v1/responses": {"model": "baton-demo", "input": "Hello", "store": False},
}


def a_value(chance: random.Random, depth: int = 0):
    kind = chance.randrange(4 if depth > 4 else 6)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        return chance.choice(NUMBERS)
    if kind < 4:
        return chance.choice(WORDS)
    if kind == 4:
        return [a_value(chance, depth + 1) for _ in range(chance.choice([0, 1, 2, 3]))]
    return {chance.choice(FIELDS): a_value(chance, depth + 1) for _ in range(chance.randrange(5))}


def a_body(chance: random.Random, path: str) -> bytes:
    body = dict(VALID.get(path, {}))
    for _ in range(chance.randint(1, 3)):
        body[chance.choice(FIELDS)] = a_value(chance)
    text = json.dumps(body if chance.random() < 0.95 else a_value(chance)).encode()
    if chance.random() < 0.05:
        text = text[: chance.randrange(len(text) + 1)]
    return text


def routes_of(client: httpx.AsyncClient) -> list[tuple[str, str]]:
    routes = client._transport.app.routes  # type: ignore[attr-defined]
    found = [(method, route.path) for route in routes if isinstance(route, Route) for method in route.methods or ()]
    return [(method, path) for method, path in found if method != "HEAD"]


async def bodies(client: httpx.AsyncClient, seconds: float, seed: int) -> None:
    chance = random.Random(seed)
    routes = routes_of(client)
    assert len(routes) > 20
    posts = [(method, path) for method, path in routes if method == "POST"]
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        method, path = chance.choice(posts if chance.random() < 0.8 else routes)
        if chance.random() < 0.5:
            method, path = "POST", chance.choice(list(VALID))
        content = a_body(chance, path) if method == "POST" else None
        url = PATH_PARAMETER.sub(lambda _: chance.choice(["x", "resp_1", "conv_1", "%00", "%F0%9F"]), path)
        if method == "GET":
            url += "?limit=" + chance.choice(["", "0", "x", "999"])
        answer, healthy = await asyncio.gather(
            client.request(method, url, content=content), asyncio.wait_for(client.get("/healthz"), PATIENCE_S)
        )
        assert healthy.status_code == 200
        if answer.status_code >= 500:
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True), (
                method,
                url,
                content,
                answer.text,
            )
        assert answer.headers["x-request-id"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("seed", range(2))
async def test_any_body_at_any_route_is_answered(client, seed):
    await bodies(client, 8.0, seed)


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 120)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
async def test_any_body_at_any_route_for_minutes(client):
    await bodies(client, 60 * FUZZ_MINUTES, random.randrange(1 << 30))

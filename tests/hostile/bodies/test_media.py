"""A service that accepts only text fetches no URL that a request names."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.component.app_with_fakes import CHAT, a_client, an_app
from tests.component.fake_engines import FakeEngines

TEXT = {"type": "text", "text": "What is it?"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with a_client(an_app(await FakeEngines().frontend(4096))) as client:
        yield client


def parts(url: str) -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image_pil", "image_pil": url},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"image_url": url},
        {"audio_url": url},
        {"video_url": url},
        {"type": "file", "file": {"file_data": url}},
    ]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", range(len(parts(""))))
@pytest.mark.parametrize("before", [0, 300])
async def test_media_are_refused_and_nothing_is_fetched(client: httpx.AsyncClient, number: int, before: int) -> None:
    fetched = asyncio.Event()

    async def on_fetch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fetched.set()
        writer.close()

    server = await asyncio.start_server(on_fetch, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x.png"
        turns = [{"role": "user", "content": "x"}] * before
        asked = [*turns, {"role": "user", "content": [TEXT, parts(url)[number]]}]
        answer = await client.post(CHAT, json={"model": "baton-demo", "messages": asked})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
        await asyncio.sleep(0)
        assert not fetched.is_set()


@pytest.mark.asyncio(loop_scope="module")
async def test_refusal_says_where_it_is(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": [TEXT]}] * 2 + [{"role": "user", "content": parts("http://a/")[:1]}]
    error = (await client.post(CHAT, json={"model": "baton-demo", "messages": messages})).json()["error"]
    assert (error["param"], error["code"]) == ("messages.2.content", "unsupported_value")
    assert "text only" in error["message"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
async def test_responses_take_text_too(client: httpx.AsyncClient, kind: str) -> None:
    part = {"type": kind, "image_url": "http://127.0.0.1:1/x", "detail": "auto", "file_id": "file_1"}
    item = {"role": "user", "content": [{"type": "input_text", "text": "x"}, part]}
    answer = await client.post("/v1/responses", json={"model": "baton-demo", "input": [item], "store": False})
    assert answer.status_code == 400, answer.text

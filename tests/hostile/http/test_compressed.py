"""Compressed request bodies on a real socket."""

import asyncio
import gzip
from collections.abc import Callable

import pytest
import zstandard

from tests.hostile.http.wire import listening, post

BOMBS = [
    (b"gzip", gzip.compress(bytes(256 << 20), 1)),
    (b"zstd", zstandard.ZstdCompressor().compress(bytes(256 << 20))),
]


@pytest.mark.parametrize(("encoding", "bomb"), BOMBS, ids=["gzip", "zstd"])
async def test_body_that_decompresses_to_too_much_is_refused(encoding: bytes, bomb: bytes) -> None:
    async with listening(max_body_bytes=4 << 20, max_bodies_bytes=8 << 20) as wire:
        for _ in range(3):  # what the one before held is free again
            answer = await wire.asked(post(bomb, b"Content-Encoding: " + encoding))
            assert (answer.status, answer.code) == (413, "request_too_large")
        assert wire.app.num_asked == 0
        assert (await wire.asked(post(gzip.compress(b"{}"), b"Content-Encoding: gzip"))).status == 200


@pytest.mark.parametrize(
    ("encoding", "compress"), [(b"gzip", gzip.compress), (b"zstd", zstandard.ZstdCompressor().compress)]
)
async def test_memory_of_bodies_counts_what_they_expand_to(encoding: bytes, compress: Callable[[bytes], bytes]) -> None:
    large = post(compress(bytes(290_000)), b"Content-Encoding: " + encoding)
    assert len(large) < 2000
    async with listening(max_body_bytes=300_000, max_bodies_bytes=400_000) as wire:
        wire.app.may_answer.clear()
        first = await wire.connection()
        await first.send(large)
        async with asyncio.timeout(5):
            while not wire.app.num_asked:  # noqa: ASYNC110  # until the kernel has delivered the request
                await asyncio.sleep(0)
        refused = await wire.asked(large)
        assert (refused.status, refused.code) == (503, "engine_overloaded")
        assert "retry-after" in refused.headers
        wire.app.may_answer.set()
        assert (await first.answer()).status == 200
        assert (await wire.asked(large)).status == 200


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ([b"Content-Encoding: br"], b"{}", 415, "unsupported_content_encoding"),
        ([b"Content-Encoding: gzip"], b"{}", 400, "invalid_content_encoding"),
        ([b"Content-Encoding: gzip", b"Content-Encoding: identity"], b"{}", 400, "repeated_header"),
    ],
)
async def test_other_bodies_are_refused(headers: list[bytes], body: bytes, status: int, code: str) -> None:
    async with listening() as wire:
        answer = await wire.asked(post(body, *headers))
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["openai-processing-ms"].isdigit()
        assert wire.app.num_asked == 0

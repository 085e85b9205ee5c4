"""Compressed request bodies on a real socket."""

import gzip

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

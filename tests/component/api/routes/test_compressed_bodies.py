"""A chat completion whose body is compressed is answered as one whose body is not."""

import gzip
import json
from collections.abc import Callable

import pytest
import zstandard

from tests.component.app_with_fakes import CHAT, FakeFrontend, a_client, an_app


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)]
)
async def test_compressed_body_is_read(encoding: str, compress: Callable[[bytes], bytes]) -> None:
    frontend = FakeFrontend({"id": "1"})
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": "x" * 100_000}]}
    headers = {"content-type": "application/json", "content-encoding": encoding}
    async with a_client(an_app(frontend)) as client:
        answer = await client.post(CHAT, content=compress(json.dumps(body).encode()), headers=headers)
    assert answer.status_code == 200 and int(answer.headers["openai-processing-ms"]) >= 0
    assert frontend.bodies == [("chat", body)]

"""What a Redis may answer: in pieces, too much, nonsense, or nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import hiredis
import pytest

from api.state.redis import client as module
from api.state.redis.client import RedisClient
from tests.unit.fake_ports import loop_rounds

ROUNDS = 10


class FakeRedis:
    """Answers each command with what a test says, piece by piece. What makes a connection is answered as by Redis."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = [b"+fine\r\n"]
        self.num_connections = 0
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._writer = writer
        parser = hiredis.Reader()
        while data := await reader.read(65536):
            parser.feed(data)
            while command := parser.gets():
                for piece in [b"+OK\r\n"] if command[0] == b"CLIENT" else self.pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
        writer.close()

    async def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()
        await loop_rounds(ROUNDS)


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeRedis]:
    made = FakeRedis()
    server = await asyncio.start_unix_server(made.serve, tmp_path / "socket")
    yield made
    server.close()
    await loop_rounds(ROUNDS)


@pytest.fixture
async def client(fake: FakeRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisClient]:
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    made = RedisClient()
    made.reach(f"unix://{tmp_path}/socket")
    yield made
    await made.close()


async def test_answer_that_comes_in_pieces_is_whole(fake: FakeRedis, client: RedisClient) -> None:
    fake.pieces = [b"*2\r\n$5\r\nhe", b"llo", b"\r\n:", b"7\r\n"]
    assert await client.run(("A",), ("B",)) == [[b"hello", 7]] * 2


@pytest.mark.parametrize("answer", [b"-LOADING Redis is loading\r\n", b"nonsense\r\n"], ids=["loading", "nonsense"])
async def test_answer_that_is_none_counts_as_an_outage(
    fake: FakeRedis, client: RedisClient, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    fake.pieces = [answer]
    assert await client.run(("A",)) is None
    assert not client.is_there
    fake.pieces = [b"+fine\r\n"]
    assert await client.run(("A",)) == [b"fine"]
    assert client.is_there
    assert fake.num_connections == 2


async def test_answer_that_nobody_asked_for_is_given_to_nobody(fake: FakeRedis, client: RedisClient) -> None:
    fake.pieces = [b"+fine\r\n", b"+of another\r\n"]
    await client.run(("A",))
    await loop_rounds(ROUNDS)
    fake.pieces = [b"+right\r\n"]
    assert await client.run(("A",)) == [b"right"]


async def test_connection_that_redis_closes_while_nobody_asks_is_no_outage(
    fake: FakeRedis, client: RedisClient, caplog: pytest.LogCaptureFixture
) -> None:
    await client.run(("A",))
    await fake.hang_up()
    assert await client.run(("A",)) == [b"fine"]
    assert fake.num_connections == 2
    assert not caplog.records


async def test_commands_that_are_asked_for_together_share_a_connection(fake: FakeRedis, client: RedisClient) -> None:
    assert await asyncio.gather(*(client.run(("A",)) for _ in range(50))) == [[b"fine"]] * 50
    assert fake.num_connections == 1

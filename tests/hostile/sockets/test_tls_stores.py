"""PostgreSQL and Redis over TLS by their URLs. The embedded servers speak no TLS: a proxy in front of them does."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from api.state.lifecycle import ChatState
from api.state.postgres.database import EVERY_TENANT, Database
from api.state.redis.client import RedisClient
from cluster.config.state import StateConfig
from cluster.errors import StateUnavailable
from tests.certificates import Authority

AUTHORITY = Authority()
SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""What a client of PostgreSQL asks first: whether the server speaks TLS."""


@asynccontextmanager
async def proxied(socket_path: str, folder: Path, *, asks_first: bool) -> AsyncIterator[tuple[int, list[str | None]]]:
    """Ends TLS in front of a server's Unix socket. Gives its port, and the version of TLS of each connection."""
    files = AUTHORITY.issued(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    versions: list[str | None] = []
    tasks: set[asyncio.Task[None] | None] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            if asks_first:
                assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
                writer.write(b"S")
            await writer.start_tls(context)
        except (OSError, EOFError, asyncio.CancelledError):
            writer.transport.abort()
            return
        versions.append(writer.get_extra_info("ssl_object").version())
        from_server, to_server = await asyncio.open_unix_connection(socket_path)
        await asyncio.wait(
            [asyncio.ensure_future(pipe(reader, to_server)), asyncio.ensure_future(pipe(from_server, writer))]
        )
        for end in (writer, to_server):
            end.close()
            with suppress(OSError):
                await end.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], versions
        for task in filter(None, tasks):
            task.cancel()  # asyncio may wait for the handshake of a client that has left it
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)


def socket_of(url: str) -> str:
    """The Unix socket of an embedded PostgreSQL."""
    return parse_qs(urlsplit(url).query)["host"][0] + "/.s.PGSQL.5432"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.pem)
    return tmp_path / "ca.crt"


@pytest.fixture
def wrong_authority(tmp_path: Path) -> Path:
    (tmp_path / "wrong.crt").write_bytes(Authority("wrong").pem)
    return tmp_path / "wrong.crt"


async def test_postgresql_is_reached_over_tls_and_its_certificate_is_checked(
    postgres: str, tmp_path: Path, authority: Path, wrong_authority: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(socket_of(postgres), tmp_path / "server", asks_first=True) as (port, versions):
        url = f"postgresql://baton@127.0.0.1:{port}/baton?sslmode=verify-full&sslrootcert="
        database = Database(f"{url}{authority}", 2)
        await database.open()
        await database.probe()
        async with database.transaction(EVERY_TENANT) as transaction:
            assert await (await transaction.execute("SELECT 1 AS one")).fetchone() == {"one": 1}
        await database.close()
        assert set(versions) == {"TLSv1.3"}
        refusing = Database(f"{url}{wrong_authority}", 2)
        with pytest.raises(StateUnavailable):
            await refusing.probe()
        await refusing.close()
        assert "PostgreSQL is away or busy" in caplog.text
        assert "certificate verify failed" in caplog.text
        caplog.clear()
        starting = ChatState(StateConfig(database_url=f"{url}{wrong_authority}", data_dir=str(tmp_path)))
        with pytest.raises(StateUnavailable):
            await starting.look()
        await starting.close()
        assert "certificate verify failed" in caplog.text


async def test_redis_is_reached_over_tls_and_its_certificate_is_checked(
    redis: str, tmp_path: Path, authority: Path, wrong_authority: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = unquote(redis.removeprefix("unix://"))
    async with proxied(path, tmp_path / "server", asks_first=False) as (port, versions):
        client = RedisClient()
        client.reach(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority}")
        assert await client.run(("PING",)) == [True]
        await client.close()
        assert versions == ["TLSv1.3"]
        refusing = RedisClient()
        refusing.reach(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={wrong_authority}")
        assert await refusing.run(("PING",)) is None
        await refusing.close()
        other_name = RedisClient()
        other_name.reach(f"rediss://127.0.0.2:{port}/0?ssl_ca_certs={authority}")
        assert await other_name.run(("PING",)) is None
        await other_name.close()
    assert "Redis is away" in caplog.text
    assert "certificate verify failed" in caplog.text

"""What becomes of conversations, and of everybody else, while PostgreSQL is away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from api.state import lifecycle as chat_state
from api.state.event_streams.orphans import Orphans
from api.state.lifecycle import ChatState
from api.state.postgres.stores.retention import Retention
from api.state.redis.client import RedisClient
from api.wire.pages import Page
from cluster.config.environment import (
    DATABASE_URL_VARIABLE,
    LIMITS_REDIS_URL_VARIABLE,
    MASTER_KEY_VARIABLE,
    REDIS_URL_VARIABLE,
)
from cluster.config.state import StateConfig
from cluster.errors import ServingError
from cluster.services.postgres import LocalPostgres
from tests.component import fake_kms
from tests.component.app_with_fakes import FakeFrontend, a_client, an_app

CONVERSATIONS = "/v1/conversations"
COMPLETION = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
KMS = "tests.component.fake_kms"
NOTHING = {"type": "message", "role": "user", "status": "completed", "content": []}


@pytest.fixture
async def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatState]:
    """With a PostgreSQL of its own, not started yet."""
    monkeypatch.setattr(chat_state, "LOOK_INTERVAL_S", 0.05)
    made = ChatState(StateConfig(data_dir=str(tmp_path)))
    yield made
    await made.close()
    assert not servers(tmp_path) and not redis_servers(tmp_path)


@pytest.fixture
async def http(state: ChatState) -> AsyncIterator[httpx.AsyncClient]:
    async with a_client(an_app(FakeFrontend(COMPLETION), state=state)) as client:
        yield client


def servers(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder / "postgres") in (p.info["cmdline"] or [])]


def redis_servers(folder: Path) -> list[psutil.Process]:
    """Those of a data folder, in the order of their folders in it."""
    found = [p for p in psutil.process_iter(["name", "cwd"]) if p.info["name"] == "redis-server"]
    found = [p for p in found if Path(p.info["cwd"] or "").is_relative_to(folder)]
    return sorted(found, key=lambda server: str(server.info["cwd"]))


async def until(
    http: httpx.AsyncClient,
    condition: Callable[[httpx.Response], bool],
    method: str = "POST",
    path: str = CONVERSATIONS,
) -> httpx.Response:
    for _ in range(3000):
        if condition(answer := await http.request(method, path)):
            return answer
        await asyncio.sleep(0.02)
    raise TimeoutError


def is_away(answer: httpx.Response) -> bool:
    return answer.status_code == 503


def is_back(answer: httpx.Response) -> bool:
    return answer.status_code == 200


async def test_before_the_first_start_conversations_are_to_be_retried(http: httpx.AsyncClient) -> None:
    answer = await http.post(CONVERSATIONS)
    assert is_away(answer) and int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "state_unavailable"
    assert (await http.get("/v1/models")).is_success


async def test_killed_postgres_comes_back_with_what_it_had(
    state: chat_state.ChatState, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    state.start()
    made = (await until(http, is_back)).json()
    for process in servers(tmp_path):
        process.kill()
    answer = await until(http, is_away)
    assert "retry-after" in answer.headers
    assert (await http.get("/v1/models")).is_success
    await until(http, is_back)
    assert (await http.get(f"{CONVERSATIONS}/{made['id']}")).json() == made


async def test_chat_completion_is_served_meanwhile_and_found_afterwards(
    state: chat_state.ChatState, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    state.start()
    await until(http, is_back)
    for process in servers(tmp_path):
        process.kill()
    answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": [], "store": True})
    assert answer.is_success
    await until(http, is_back)
    path = f"/v1/chat/completions/{answer.json()['id']}"
    await until(http, lambda found: found.is_success, "GET", path)


async def test_killed_redis_is_started_again(state: chat_state.ChatState, tmp_path: Path) -> None:
    state.start()
    await until_marked(state)
    killed = redis_servers(tmp_path)
    assert len(killed) == 2
    for server in killed:
        server.kill()
    assert await state.cache.mark("alice", "conv_1") is None
    assert await state.limits_redis.run(("PING",)) is None
    await until_marked(state)
    await until_answered(state.limits_redis)
    started = redis_servers(tmp_path)
    assert len(started) == 2 and not {server.pid for server in started} & {server.pid for server in killed}


async def until_marked(state: ChatState) -> None:
    """Redis answers."""
    for _ in range(1000):
        if await state.cache.mark("alice", "conv_1") is not None:
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


async def until_answered(redis: RedisClient) -> None:
    for _ in range(1000):
        if await redis.run(("PING",)) is not None:
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


async def test_redis_that_cannot_start_is_done_without(
    state: chat_state.ChatState, http: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "redis").touch()
    state.start()
    made = (await until(http, is_back)).json()
    assert (await http.get(f"{CONVERSATIONS}/{made['id']}")).json() == made
    assert f"Redis does not start in {tmp_path / 'redis'}" in caplog.text


def test_url_of_redis_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REDIS_URL_VARIABLE, "localhost")
    with pytest.raises(ValueError, match="redis"):
        ChatState(StateConfig(data_dir=str(tmp_path)))


def test_variable_that_is_empty_overrides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file has it where nobody has set one."""
    for variable in (DATABASE_URL_VARIABLE, REDIS_URL_VARIABLE, LIMITS_REDIS_URL_VARIABLE):
        monkeypatch.setenv(variable, "")
    made = ChatState(StateConfig(database_url="postgresql://there", redis_url="redis://there", data_dir=str(tmp_path)))
    assert (made.local, made._local_redis, made._url) == (None, [], "postgresql://there")


async def test_restart_keeps_the_conversations(tmp_path: Path) -> None:
    config = StateConfig(data_dir=str(tmp_path))
    first = ChatState(config)
    await first.look()
    made = await first.stores.conversations.create("alice", {}, [NOTHING])
    await first.close()
    second = ChatState(config)
    await second.look()
    assert await second.stores.conversations.get("alice", made.id) == made
    await second.close()


async def test_database_of_a_newer_version_is_left_alone(
    state: chat_state.ChatState, http: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(LocalPostgres(tmp_path / "postgres").start()) as connection:
        connection.execute("CREATE TABLE schema_migrations (version int PRIMARY KEY, name text NOT NULL)")
        connection.execute("INSERT INTO schema_migrations VALUES (999, 'from_the_future')")
    state.start()
    await until(http, lambda _: "a newer version of Baton" in caplog.text)
    assert is_away(await http.post(CONVERSATIONS))


async def test_other_master_key_is_noticed_at_once(
    state: chat_state.ChatState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await state.look()
    made = await state.stores.conversations.create("anonymous", {}, [NOTHING])
    monkeypatch.setenv(MASTER_KEY_VARIABLE, "00" * 32)
    await is_refused(StateConfig(data_dir=str(tmp_path)), made.id)
    assert "the master key is not the one" in caplog.text


async def test_master_key_counts_from_the_first_start_on(
    state: chat_state.ChatState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await state.look()
    monkeypatch.setenv(MASTER_KEY_VARIABLE, "00" * 32)
    await is_refused(StateConfig(data_dir=str(tmp_path)), "conv_1")


async def is_refused(config: StateConfig, conversation: str) -> None:
    other = ChatState(config)
    transport = httpx.ASGITransport(an_app(FakeFrontend(), state=other), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://baton") as client:
        other.start()
        await until(client, lambda answer: answer.status_code == 500)
        for answer in (await client.get(f"{CONVERSATIONS}/{conversation}/items"), await client.post(CONVERSATIONS)):
            assert answer.status_code == 500 and "master key" in answer.json()["error"]["message"]
    await other.close()


async def test_key_management_service_wraps_the_keys(tmp_path: Path) -> None:
    config = StateConfig(data_dir=str(tmp_path), master_key=f"{KMS}:one")
    first = ChatState(config)
    await first.look()
    made = await first.stores.conversations.create("alice", {}, [NOTHING])
    await first.close()
    second = ChatState(config)
    await second.look()
    before = fake_kms.ONE.num_unwrapped
    for _ in range(3):
        assert len((await second.stores.conversations.items("alice", made.id, Page(None, 10, True))).data) == 1
    assert fake_kms.ONE.num_unwrapped == before + 1  # it is far away: not asked again
    await second.close()
    other = ChatState(StateConfig(data_dir=str(tmp_path), master_key=f"{KMS}:another"))
    with pytest.raises(ServingError, match="the service has another key"):
        await other.look()
    await other.close()
    assert not (tmp_path / "master.key").exists()


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        ("no.such.module:key", "no.such.module:key returns no master key .*No module named 'no'"),
        (f"{KMS}:nothing", "no attribute 'nothing'"),
        (f"{KMS}:broken", "OSError: no credentials"),
        (f"{KMS}:no_master_key", "lacks name, wrap or unwrap"),
    ],
)
def test_factory_that_gives_no_master_key_is_named(tmp_path: Path, factory: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ChatState(StateConfig(data_dir=str(tmp_path), master_key=factory))


def test_two_master_keys_are_one_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MASTER_KEY_VARIABLE, "00" * 32)
    with pytest.raises(ValueError, match="both set"):
        ChatState(StateConfig(data_dir=str(tmp_path), master_key=f"{KMS}:one"))


async def test_language_that_postgres_does_not_know_is_named(
    state: chat_state.ChatState, http: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = ChatState(StateConfig(data_dir=str(tmp_path), search_language="klingon"))
    with pytest.raises(
        ValueError, match=r"state.search_language: PostgreSQL does not know 'klingon'; it knows .*english"
    ):
        await other.look()
    await other.close()


@pytest.mark.parametrize("key", ["", "zz", "00" * 31])
def test_master_key_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(MASTER_KEY_VARIABLE, key)
    with pytest.raises(ValueError, match=MASTER_KEY_VARIABLE):
        ChatState(StateConfig(data_dir=str(tmp_path)))


async def test_job_that_hangs_or_fails_keeps_no_other_from_its_work(
    state: chat_state.ChatState, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Retention, "run", hang)
    monkeypatch.setattr(Orphans, "end", fail)
    state.start()
    await until(http, is_back)
    said = {"type": "message", "role": "user", "content": "canary"}
    made = (await http.post(CONVERSATIONS, json={"items": [said]})).json()
    path = f"{CONVERSATIONS}?query=canary"
    answer = await until(http, lambda found: bool(found.json()["data"]), "GET", path)
    assert [shown["id"] for shown in answer.json()["data"]] == [made["id"]]

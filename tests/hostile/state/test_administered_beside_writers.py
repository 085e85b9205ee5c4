"""What is being written while the operator erases a tenant or rotates its key: it is not overlooked."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest
from redis import Redis

from api.state import administration as module
from api.state.administration import REPLICAS_LOOK_S, TRANSACTION_TIMEOUT_S
from api.state.encryption.tenant_keys import LOOK_MARGIN, LocalMasterKey
from api.state.lifecycle import LOOK_INTERVAL_S, ChatState
from tests.expected import of_kind
from tests.hostile.state.conftest import HttpOf
from tests.hostile.state.stored import SAID, rows, with_everything
from tests.hostile.state.test_erasure import ALICE, administration, rows_of

LOOK_S = 0.6


class SlowMasterKey:
    """Unwraps when it may: a transaction that wants to seal something stands still meanwhile."""

    def __init__(self, master: LocalMasterKey) -> None:
        self.name = master.name
        self.wrap = master.wrap
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self._master = master

    def unwrap(self, wrapped: bytes) -> bytes:
        self.asked.set()
        self.may_answer.wait(10.0)
        return self._master.unwrap(wrapped)


@pytest.fixture
async def writer(state_with: Callable[..., Awaitable[ChatState]]) -> AsyncIterator[ChatState]:
    """A replica that has never used a key, and waits for it within its first transaction."""
    replica = await state_with()
    replica._keys._kept.clear()
    slow = SlowMasterKey(of_kind(LocalMasterKey, replica._keys._master))
    replica._keys._master = slow
    yield replica
    slow.may_answer.set()


async def begun(writer: ChatState, http_of: HttpOf) -> asyncio.Task[httpx.Response]:
    """A conversation that is being made, with the key of today."""
    made = asyncio.create_task(http_of(writer).post("/v1/conversations", json={"items": SAID}))
    assert await asyncio.to_thread(of_kind(SlowMasterKey, writer._keys._master).asked.wait, 10.0)
    return made


async def waits_or_is_done(task: asyncio.Task[Any], url: str) -> None:
    """For those who have begun before."""
    while not task.done() and not rows(url, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):  # noqa: ASYNC110  # locks set no event
        await asyncio.sleep(0.01)


async def test_what_is_being_written_is_erased_too(
    http_of: HttpOf, state: ChatState, writer: ChatState, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPLICAS_LOOK_S", 0.0)
    await with_everything(http_of(state))
    making = await begun(writer, http_of)
    erasing = asyncio.create_task(administration(state).erase(ALICE))
    await waits_or_is_done(erasing, postgres)
    of_kind(SlowMasterKey, writer._keys._master).may_answer.set()
    assert (await making).status_code == 200
    await erasing
    assert rows_of(postgres, ALICE).keys() == {"tenants", "tenant_keys"}


async def test_what_is_being_written_is_sealed_with_the_new_key_too(
    http_of: HttpOf, state: ChatState, writer: ChatState, postgres: str
) -> None:
    http = http_of(state)
    await with_everything(http)
    making = await begun(writer, http_of)
    rotating = asyncio.create_task(administration(state).rotate(ALICE))
    await waits_or_is_done(rotating, postgres)
    of_kind(SlowMasterKey, writer._keys._master).may_answer.set()
    made = (await making).json()["id"]
    assert await rotating == [1]
    assert {version for (version,) in rows(postgres, "SELECT DISTINCT key_version FROM items")} == {2}
    items = (await http.get(f"/v1/conversations/{made}/items")).json()["data"]
    assert items[0]["content"][0]["text"] == "canary"


async def test_copy_that_a_replica_makes_before_it_looks_is_erased_too(
    http_of: HttpOf, state: ChatState, redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the key until it looks for keys that are destroyed."""
    monkeypatch.setattr(module, "REPLICAS_LOOK_S", LOOK_S)
    await with_everything(http_of(state))
    loop = asyncio.get_running_loop()
    with Redis.from_url(redis) as client:
        copy = f"baton:cache:{ALICE}:conv_late"

        def tell(done: str) -> None:
            if "destroyed" in done:
                loop.call_later(LOOK_S / 2, client.set, copy, "canary")

        erased = await state.administration(tell).erase(ALICE)
        await asyncio.sleep(LOOK_S / 2)  # by when it has been made in any case
        assert erased["Redis"] >= 1
        assert client.get(copy) is None


async def test_key_that_was_destroyed_by_a_transaction_that_lasted_is_forgotten(
    http_of: HttpOf, state: ChatState, postgres: str
) -> None:
    """Its time is that of the beginning, and a replica has looked before the end."""
    await with_everything(http_of(state))
    assert state._keys.remembered(ALICE) is not None
    with psycopg.connect(postgres) as destroying:
        destroying.execute("SELECT set_config('app.tenant_id', %s, true)", [ALICE])
        destroying.execute("UPDATE tenant_keys SET wrapped_key = NULL, destroyed_at = now()")
        for _ in range(2):
            await state.look()
        assert state._keys.remembered(ALICE) is not None
    await state.look()
    assert state._keys.remembered(ALICE) is None


def test_replicas_have_the_time_to_look() -> None:
    assert REPLICAS_LOOK_S > LOOK_INTERVAL_S
    assert timedelta(seconds=TRANSACTION_TIMEOUT_S) < LOOK_MARGIN

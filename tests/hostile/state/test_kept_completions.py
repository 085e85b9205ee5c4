"""Whoever is told that a chat completion is stored finds it, whatever another tenant stores."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from api.completions import store_writer
from api.completions.store_writer import CompletionStoreWriter
from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from api.state.postgres.stores.chat_completions import ChatCompletion
from cluster.errors import StateUnavailable
from tests.component.api.state.test_stored_completions import Model
from tests.hostile.state.conftest import HttpOf
from tests.hostile.state.stored import services_of

KILO = 1 << 10
CHAT = "/v1/chat/completions"


def asked(content: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], "store": True, **fields}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def greedy_is_slow(state: ChatState, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """PostgreSQL takes what alice stores when it may."""
    store, may_go_on = state.stores.chat_completions, asyncio.Event()
    add = store.add

    async def slowly(tenant: str, completion: Any) -> None:
        if tenant == tenant_of_key("sk-alice"):
            await may_go_on.wait()
        await add(tenant, completion)

    monkeypatch.setattr(store, "add", slowly)
    return may_go_on


async def stored(http: httpx.AsyncClient, **options: Any) -> int:
    return len((await http.get(CHAT, **options)).json()["data"])


async def test_tenant_that_fills_its_queue_is_told_so_and_the_others_are_stored(
    http_of: HttpOf, model: Model, state: ChatState, monkeypatch: pytest.MonkeyPatch, greedy_is_slow: asyncio.Event
) -> None:
    monkeypatch.setattr(store_writer, "WRITTEN_WITHIN_S", 0.2)
    monkeypatch.setattr(store_writer, "MAX_WAITING_BYTES", 80 * KILO)
    app = http_of(state)
    bob = {"authorization": "Bearer sk-bob"}
    answers = [await app.post(CHAT, json=asked("x" * 8 * KILO)) for _ in range(4)]
    told = [answer.status_code for answer in answers]
    assert told == [200, 200, 503, 503]
    assert int(answers[-1].headers["retry-after"]) >= 1
    monkeypatch.setattr(store_writer, "WRITTEN_WITHIN_S", 30.0)
    assert (await app.post(CHAT, json=asked("x" * 8 * KILO), headers=bob)).status_code == 200
    assert await stored(app, headers=bob) == 1
    greedy_is_slow.set()
    await services_of(app).completion_writer.drained()
    assert await stored(app) == 2


async def test_completion_that_waits_for_room_gets_it(
    http_of: HttpOf, model: Model, state: ChatState, monkeypatch: pytest.MonkeyPatch, greedy_is_slow: asyncio.Event
) -> None:
    """It was generated before the queue was full."""
    monkeypatch.setattr(store_writer, "MAX_WAITING_BYTES", 80 * KILO)
    app = http_of(state)
    model.may_go_on.clear()
    bodies = [asked("x" * 8 * KILO, stream=True) for _ in range(3)]
    answers = [asyncio.create_task(app.post(CHAT, json=body)) for body in bodies]
    await asyncio.wait(answers, timeout=0.2)  # all of them are being answered
    assert len(model.bodies) == 3
    model.may_go_on.set()
    await asyncio.sleep(0.1)
    greedy_is_slow.set()
    for answer in answers:
        assert "error" not in (await answer).text
    assert await stored(app) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_completion_for_which_the_tenant_has_no_room_is_not_told_as_stored(
    state: ChatState, state_with: Callable[..., Awaitable[ChatState]], http_of: HttpOf, model: Model, stream: bool
) -> None:
    http = http_of(await state_with(max_tenant_bytes=KILO))
    answer = await http.post(CHAT, json=asked("x" * 2 * KILO, stream=stream))
    assert "storage_quota_exceeded" in answer.text
    assert stream or answer.status_code == 400
    assert await stored(http) == 0


async def test_messages_that_are_too_large_to_store_are_refused_before_they_are_answered(
    state: ChatState, state_with: Callable[..., Awaitable[ChatState]], http_of: HttpOf, model: Model
) -> None:
    http = http_of(await state_with(max_item_bytes=KILO))
    answer = await http.post(CHAT, json=asked("x" * 2 * KILO))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    assert model.bodies == []


class SlowStore:
    """Takes what it is given when it may."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.tenants: list[str] = []

    async def add(self, tenant: str, completion: ChatCompletion) -> None:
        await self.may_go_on.wait()
        self.tenants.append(tenant)


async def test_all_tenants_together_fill_no_more_than_64_mib() -> None:
    store = SlowStore()
    state: Any = SimpleNamespace(stores=SimpleNamespace(chat_completions=store), max_item_bytes=64 << 20)
    kept = CompletionStoreWriter(state)

    def of_size(num_bytes: int) -> ChatCompletion:
        return ChatCompletion("chatcmpl-1", datetime.now(UTC), "m", None, {}, bytes(num_bytes), b"")

    for tenant in ("a", "b", "c", "d"):
        kept.put(tenant, of_size(15 << 20))
    kept.put("e", of_size(4 << 20))
    for tenant in ("a", "e", "f"):
        with pytest.raises(StateUnavailable):
            kept.put(tenant, of_size(1))
    store.may_go_on.set()
    await kept.drained()
    assert sorted(store.tenants) == ["a", "b", "c", "d", "e"]
    kept.put("f", of_size(16 << 20))
    await kept.drained()

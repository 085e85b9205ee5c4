"""API keys over HTTP: what a client is answered, by an ingress with accounts in a real PostgreSQL."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, PermissionDeniedError

from api.identity.access import Access
from api.identity.authentication import Authentication
from api.identity.keys import HANDLE_CHARS, PREFIX, SECRET_CHARS, new_key
from api.identity.rights import Right
from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from api.state.postgres import database as module
from tests.component.accounts import OPERATOR, Accounts, accounts_at
from tests.component.app_with_fakes import FakeFrontend
from tests.component.app_with_postgres import ClientOf, clients_of
from tests.component.emptied import emptied
from tests.component.killable_postgres import KillablePostgres

WITHIN_S = 1.0
"""In which a change must count. The machine may be busy: the looks are half a second apart."""
STRANGER = new_key(bytes(range(48))).text
BODY: dict[str, Any] = {"model": "baton-demo", "messages": [{"role": "user", "content": "hello"}]}


class Served(NamedTuple):
    accounts: Accounts
    client_of: ClientOf
    frontend: FakeFrontend


@asynccontextmanager
async def served_at(url: str, state: ChatState | None = None, *, is_required: bool = True) -> AsyncIterator[Served]:
    frontend = FakeFrontend()
    async with accounts_at(url) as accounts, accounts_at(url) as asked:
        authentication = Authentication(asked.known, time.time, 300.0)
        authentication.start()
        access = Access(authentication.identify, is_required=is_required)
        async with clients_of(state, frontend, access=access) as client_of:
            yield Served(accounts, client_of, frontend)
        await authentication.close()


@pytest.fixture
async def served(postgres: str) -> AsyncIterator[Served]:
    emptied(postgres)
    async with served_at(postgres) as made:
        yield made


async def until(status: int, ask: Callable[[], Awaitable[object]]) -> float:
    """Ask until the answer has this status. Returns the seconds."""
    begun = time.monotonic()
    while time.monotonic() - begun < 20:
        try:
            await ask()
            found = 200
        except APIStatusError as error:
            found = error.status_code
        if found == status:
            return time.monotonic() - begun
        await asyncio.sleep(0.02)
    raise TimeoutError(f"it was never {status}")


async def test_key_works_and_none_and_another_are_refused(served: Served) -> None:
    issued = await served.accounts.key(await served.accounts.tenant())
    client = served.client_of(issued.text)
    assert [model.id async for model in client.models.list()] == ["baton-demo"]
    assert (await client.post("/chat/completions", cast_to=dict[str, Any], body=BODY))["id"] == "1"
    for refused in (STRANGER, issued.text[:-1], "unused", "sk-alice"):
        with pytest.raises(AuthenticationError) as caught:
            await served.client_of(refused).models.list()
        assert (caught.value.code, caught.value.response.headers["www-authenticate"]) == ("invalid_api_key", "Bearer")
    answer = await client._client.get(f"{client.base_url}models")  # without a header of the client
    assert answer.status_code == 401 and "Authorization: Bearer <key>" in answer.json()["error"]["message"]


async def test_health_and_readiness_ask_for_no_key(served: Served) -> None:
    client = served.client_of(STRANGER)
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(str(client.base_url)))
    for path in ("/healthz", "/readyz"):
        assert (await client._client.get(origin + path)).status_code == 200


async def test_revoked_key_is_refused_within_a_second(served: Served) -> None:
    issued = await served.accounts.key(await served.accounts.tenant())
    client = served.client_of(issued.text)
    await client.models.list()
    await served.accounts.keys.revoke(issued.key.id, OPERATOR)
    assert await until(401, client.models.list) < WITHIN_S


async def test_suspended_tenant_is_told_so_and_goes_on_when_resumed(served: Served) -> None:
    tenant = await served.accounts.tenant()
    client = served.client_of((await served.accounts.key(tenant)).text)
    await client.models.list()
    await served.accounts.tenants.suspend(tenant, OPERATOR)
    assert await until(403, client.models.list) < WITHIN_S
    with pytest.raises(PermissionDeniedError) as caught:
        await client.models.list()
    assert caught.value.code == "tenant_suspended"
    await served.accounts.tenants.resume(tenant, OPERATOR)
    assert await until(200, client.models.list) < WITHIN_S


async def test_changed_rights_and_models_count_within_a_second(served: Served) -> None:
    issued = await served.accounts.key(await served.accounts.tenant(), rights=frozenset({Right.STATE_READ}))
    client = served.client_of(issued.text)
    with pytest.raises(PermissionDeniedError, match="'inference'"):
        await client.models.list()
    change = {"rights": frozenset({Right.INFERENCE}), "models": frozenset({"other"})}
    await served.accounts.change(issued.key.id, **change)
    assert await until(200, client.models.list) < WITHIN_S
    assert [model.id async for model in client.models.list()] == []
    with pytest.raises(PermissionDeniedError) as caught:
        await client.post("/chat/completions", cast_to=dict[str, Any], body=BODY)
    assert caught.value.code == "model_not_allowed" and not served.frontend.bodies


async def test_keys_of_one_tenant_share_what_is_stored_and_no_other_tenant_sees_it(
    state: ChatState, postgres: str
) -> None:
    async with served_at(postgres, state) as served:
        tenant, other = await served.accounts.tenant(), await served.accounts.tenant("other")
        first, second, stranger = [
            served.client_of((await served.accounts.key(whose)).text) for whose in (tenant, tenant, other)
        ]
        made = await first.conversations.create()
        assert (await second.conversations.retrieve(made.id)).id == made.id
        with pytest.raises(APIStatusError) as caught:
            await stranger.conversations.retrieve(made.id)
        assert caught.value.status_code == 404
        assert await state.stores.conversations.get(tenant, made.id)


async def test_tenant_that_adopts_an_old_key_finds_what_was_stored_with_it(state: ChatState, postgres: str) -> None:
    async with served_at(postgres, state, is_required=False) as served:
        made = await served.client_of("sk-alice").conversations.create()
    async with served_at(postgres, state) as served:
        await served.accounts.tenants.create("alice", OPERATOR, adopted=tenant_of_key("sk-alice"))
        with pytest.raises(AuthenticationError):
            await served.client_of("sk-alice").conversations.retrieve(made.id)
        issued = await served.accounts.key(tenant_of_key("sk-alice"))
        assert (await served.client_of(issued.text).conversations.retrieve(made.id)).id == made.id


async def test_where_none_is_required_any_name_goes_and_a_revoked_key_does_not(postgres: str) -> None:
    emptied(postgres)
    async with served_at(postgres, is_required=False) as served:
        issued = await served.accounts.key(await served.accounts.tenant())
        for text in ("unused", "sk-alice", issued.text):
            assert await until(200, served.client_of(text).models.list) < WITHIN_S
        await served.accounts.keys.revoke(issued.key.id, OPERATOR)
        assert await until(401, served.client_of(issued.text).models.list) < WITHIN_S
        with pytest.raises(AuthenticationError):
            await served.client_of(STRANGER).models.list()


@pytest.mark.parametrize("credential", [None, STRANGER, "sk-baton-cut"])
async def test_request_is_refused_before_its_body_is_sent(served: Served, credential: str | None) -> None:
    """Also one whose body would be too large, or of a wrong type: what a stranger sends is not looked at."""
    address = urlsplit(str(served.client_of("unused").base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    header = "" if credential is None else f"Authorization: Bearer {credential}\r\n"
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{header}Content-Type: text/plain\r\n"
        f"Content-Length: {1 << 30}\r\n\r\n".encode()
    )
    async with asyncio.timeout(5):
        assert (await reader.readline()).split()[1] == b"401"
    writer.close()
    assert not served.frontend.bodies


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillablePostgres]:
    made = KillablePostgres(tmp_path_factory.mktemp("accounts") / "postgres")
    yield made
    made.close()


async def test_while_postgres_is_away_known_keys_go_on_and_others_are_to_come_back(
    server: KillablePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTION_TIMEOUT_S", 0.2)
    server.up()
    emptied(server.url)
    async with served_at(server.url) as served:
        tenant = await served.accounts.tenant()
        known, new = [served.client_of((await served.accounts.key(tenant)).text) for _ in range(2)]
        await known.models.list()
        server.down()
        await known.models.list()
        for client in (new, served.client_of(STRANGER)):
            with pytest.raises(APIStatusError) as caught:
                await client.models.list()
            assert (caught.value.status_code, caught.value.code) == (503, "state_unavailable")
            assert int(caught.value.response.headers["retry-after"]) > 0
        with pytest.raises(AuthenticationError):
            await served.client_of("no key at all").models.list()
        server.up()
        assert await until(200, new.models.list) < 15


async def test_no_line_of_the_log_and_no_answer_has_more_of_a_key_than_its_handle(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tenant = await served.accounts.tenant()
    issued = await served.accounts.key(tenant)
    mistyped = issued.text[:-1] + ("0" if issued.text[-1] != "0" else "1")
    sent = [issued.text, STRANGER, mistyped, issued.text[: -SECRET_CHARS // 2], "sk-proj-" + "s3cret" * 20]
    told: list[str] = []

    async def ask(client: AsyncOpenAI) -> None:
        try:
            await client.post("/chat/completions", cast_to=dict[str, Any], body=BODY)
        except APIStatusError as error:
            told.append(error.response.text)

    for text in sent:
        await ask(served.client_of(text))
    served.frontend.answer = RuntimeError("unforeseen")
    await ask(served.client_of(issued.text))
    await served.accounts.tenants.suspend(tenant, OPERATOR)
    await until(403, served.client_of(issued.text).models.list)
    await ask(served.client_of(issued.text))
    assert len(told) == 6 and "unforeseen" in caplog.text
    ours = "\n".join(record.getMessage() for record in caplog.records if not _is_of_a_client(record))
    for text in sent:
        secret = text[len(PREFIX) + HANDLE_CHARS :]
        for begin in range(len(secret) - 8):
            part = secret[begin : begin + 8]
            assert part not in ours and not [one for one in told if part in one]


def _is_of_a_client(record: logging.LogRecord) -> bool:
    """The clients run in this process, and log what they send."""
    return record.name.startswith(("openai", "httpcore", "httpx"))

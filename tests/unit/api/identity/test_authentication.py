"""Authentication with accounts in memory: what is remembered, asked for together, and refused."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from api.identity import authentication as module
from api.identity import known
from api.identity.authentication import Authentication
from api.identity.keys import NewKey, new_key
from api.identity.ports import AccountChanges, AccountStanding, KnownKey, KnownProject, ProjectName
from api.identity.principal import Principal
from api.identity.rights import DEFAULT_RIGHTS
from cluster.errors import Forbidden, ServingError, StateUnavailable, Unauthorized

OFFLINE_S = 300.0


def a_key(number: int = 0) -> NewKey:
    return new_key(bytes(40) + number.to_bytes(8))


def a_known_key(key: NewKey, tenant: str = "t", **values: Any) -> KnownKey:
    principal = Principal(tenant=tenant, project="p", key=f"key_{key.handle}{key.text[-10:]}", rights=DEFAULT_RIGHTS)
    fields: dict[str, Any] = {"standing": AccountStanding.ACTIVE, "is_revoked": False, "expires_at": None}
    return KnownKey(handle=key.handle, principal=principal, **{**fields, **values})


class FakeAccounts:
    """Accounts in memory, which can be away, slow or broken."""

    def __init__(self) -> None:
        self.keys: dict[bytes, KnownKey] = {}
        self.version = 1
        self.changed: dict[int, str] = {}
        self.fault: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked: list[int] = []
        """The number of digests of each query."""
        self.num_at_once = self.most_at_once = 0
        self.touched: dict[str, float] = {}

    def put(self, key: NewKey, found: KnownKey) -> None:
        self.keys[key.digest] = found
        self.version += 1
        self.changed[self.version] = found.tenant

    async def _answer(self) -> None:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await self.may_answer.wait()
        self.num_at_once -= 1
        if self.fault is not None:
            raise self.fault

    async def look_up(self, digests: Sequence[bytes]) -> Mapping[bytes, KnownKey]:
        self.asked.append(len(digests))
        await self._answer()
        return {digest: self.keys[digest] for digest in digests if digest in self.keys}

    async def look_up_projects(self, names: Sequence[ProjectName]) -> Mapping[ProjectName, KnownProject]:
        await self._answer()
        return {}

    async def changes(self, since: int | None) -> AccountChanges:
        await self._answer()
        if since is None:
            return AccountChanges(self.version, None)
        return AccountChanges(self.version, frozenset(t for v, t in self.changed.items() if v > since))

    async def touch(self, used: Mapping[str, float]) -> None:
        await self._answer()
        self.touched |= used


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made_authentication(accounts: FakeAccounts, clock: Clock, offline_s: float = OFFLINE_S) -> Authentication:
    """Its times are those of the clock alone, however slow the machine is."""
    return Authentication(accounts, clock, offline_s, monotonic=clock)


@pytest.fixture
def accounts() -> FakeAccounts:
    return FakeAccounts()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def authentication(accounts: FakeAccounts, clock: Clock) -> AsyncIterator[Authentication]:
    """It has looked once, and looks again when a test says so."""
    made = made_authentication(accounts, clock)
    await made.look()
    yield made
    await made.close()


async def test_200_keys_at_once_make_one_query(authentication: Authentication, accounts: FakeAccounts) -> None:
    keys = [a_key(number) for number in range(200)]
    for key in keys:
        accounts.keys[key.digest] = a_known_key(key)
    found = await asyncio.gather(*(authentication.identify(key.text) for key in keys))
    assert accounts.asked == [200] and {principal.tenant for principal in found} == {"t"}


async def test_one_key_200_times_at_once_makes_one_query(
    authentication: Authentication, accounts: FakeAccounts
) -> None:
    key = a_key()
    accounts.keys[key.digest] = a_known_key(key)
    await asyncio.gather(*(authentication.identify(key.text) for _ in range(200)))
    assert accounts.asked == [1]


async def test_one_query_runs_at_a_time(authentication: Authentication, accounts: FakeAccounts) -> None:
    accounts.may_answer.clear()
    first = asyncio.create_task(authentication.identify(a_key(1).text))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(authentication.identify(a_key(number).text)) for number in range(2, 50)]
    looks = asyncio.create_task(authentication.look())
    await asyncio.sleep(0.01)
    accounts.may_answer.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    await looks
    assert all(isinstance(result, Unauthorized) for result in results)
    assert accounts.most_at_once == 1 and accounts.asked == [1, 48]


async def test_remembered_key_needs_no_wait(authentication: Authentication, accounts: FakeAccounts) -> None:
    key = a_key()
    accounts.keys[key.digest] = a_known_key(key)
    await authentication.identify(key.text)
    answer = authentication.identify(key.text)
    with pytest.raises(StopIteration):  # the coroutine ends without having given the event loop a turn
        answer.send(None)
    assert accounts.asked == [1]


async def test_unknown_key_is_asked_for_once(authentication: Authentication, accounts: FakeAccounts) -> None:
    key = a_key()
    for _ in range(3):
        with pytest.raises(Unauthorized, match="is unknown") as caught:
            await authentication.identify(key.text)
        assert key.handle in str(caught.value) and key.text[18:] not in str(caught.value)
    assert accounts.asked == [1]
    accounts.put(key, a_known_key(key))
    await authentication.look()
    assert (await authentication.identify(key.text)).tenant == "t"


async def test_mistyped_key_needs_no_query(authentication: Authentication, accounts: FakeAccounts) -> None:
    with pytest.raises(Unauthorized):
        await authentication.identify(a_key().text[:-1] + "!")
    assert accounts.asked == []


async def test_revocation_counts_after_the_next_look(authentication: Authentication, accounts: FakeAccounts) -> None:
    key, other = a_key(1), a_key(2)
    accounts.put(key, a_known_key(key, "t"))
    accounts.put(other, a_known_key(other, "u"))
    await authentication.identify(key.text)
    await authentication.identify(other.text)
    await authentication.look()
    accounts.asked.clear()
    accounts.put(key, a_known_key(key, "t", is_revoked=True))
    await authentication.look()
    assert accounts.asked == [1]  # what is remembered of the other tenant has not changed
    with pytest.raises(Unauthorized, match="has been revoked"):
        await authentication.identify(key.text)
    await authentication.identify(other.text)
    assert accounts.asked == [1]


async def test_lower_version_is_another_history(authentication: Authentication, accounts: FakeAccounts) -> None:
    key = a_key()
    accounts.put(key, a_known_key(key))
    accounts.version = 50
    await authentication.look()
    await authentication.identify(key.text)
    accounts.keys.clear()
    accounts.version, accounts.changed = 20, {}
    await authentication.look()
    with pytest.raises(Unauthorized):
        await authentication.identify(key.text)


async def test_everything_is_asked_for_again_after_an_outage(
    authentication: Authentication, accounts: FakeAccounts
) -> None:
    """The database that comes back may be a copy which lacks the last changes, with the same version."""
    key = a_key()
    accounts.keys[key.digest] = a_known_key(key)
    await authentication.identify(key.text)
    accounts.fault = StateUnavailable("away", 1.0)
    with pytest.raises(StateUnavailable):
        await authentication.look()
    accounts.fault = None
    accounts.keys.clear()
    await authentication.look()
    with pytest.raises(Unauthorized):
        await authentication.identify(key.text)


@pytest.mark.parametrize("fault", [StateUnavailable("away", 1.0), RuntimeError("broken")])
async def test_unknown_key_gets_503_while_accounts_are_away(
    authentication: Authentication, accounts: FakeAccounts, fault: Exception
) -> None:
    accounts.fault = fault
    with pytest.raises(StateUnavailable) as caught:
        await authentication.identify(a_key().text)
    assert (caught.value.http_status, caught.value.retry_after_s) == (503, 2.0)


async def test_key_that_was_unknown_gets_503_once_nobody_knows_whether_it_is(
    authentication: Authentication, accounts: FakeAccounts, clock: Clock
) -> None:
    key = a_key()
    with pytest.raises(Unauthorized):
        await authentication.identify(key.text)
    accounts.fault = StateUnavailable("away", 1.0)
    clock.now += module.ABSENT_S + 0.01
    with pytest.raises(StateUnavailable):
        await authentication.identify(key.text)


async def test_known_key_goes_on_for_a_while(accounts: FakeAccounts, clock: Clock) -> None:
    key = a_key()
    accounts.keys[key.digest] = a_known_key(key)
    authentication = made_authentication(accounts, clock, 0.2)
    await authentication.look()
    await authentication.identify(key.text)
    accounts.fault = StateUnavailable("away", 1.0)
    await authentication.identify(key.text)
    clock.now += 0.25
    with pytest.raises(StateUnavailable):
        await authentication.identify(key.text)
    accounts.fault = None
    assert (await authentication.identify(key.text)).tenant == "t"  # by a query, without a look
    await authentication.close()


async def test_expiry_is_checked_at_each_use(
    authentication: Authentication, accounts: FakeAccounts, clock: Clock
) -> None:
    key = a_key()
    accounts.keys[key.digest] = a_known_key(key, expires_at=1000.5)
    await authentication.identify(key.text)
    clock.now = 1000.5
    with pytest.raises(Unauthorized, match="has expired"):
        await authentication.identify(key.text)
    assert accounts.asked == [1]


@pytest.mark.parametrize(
    ("standing", "error", "code"),
    [
        (AccountStanding.SUSPENDED, Forbidden, "tenant_suspended"),
        (AccountStanding.ARCHIVED, Forbidden, "project_archived"),
        (AccountStanding.UNREADABLE, ServingError, None),
    ],
)
async def test_tenant_that_may_not_ask_is_told_why(
    authentication: Authentication,
    accounts: FakeAccounts,
    standing: AccountStanding,
    error: type[ServingError],
    code: str,
) -> None:
    key = a_key()
    accounts.keys[key.digest] = a_known_key(key, standing=standing)
    with pytest.raises(error) as caught:
        await authentication.identify(key.text)
    assert caught.value.code == code


async def test_too_many_that_wait_are_refused_at_once(
    authentication: Authentication, accounts: FakeAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "MAX_WAITING", 5)
    accounts.may_answer.clear()
    waiting = [asyncio.create_task(authentication.identify(a_key(number).text)) for number in range(5)]
    await asyncio.sleep(0.01)
    with pytest.raises(StateUnavailable, match="wait") as caught:
        await authentication.identify(a_key(9).text)
    assert caught.value.retry_after_s > 0
    accounts.may_answer.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    with pytest.raises(Unauthorized):
        await authentication.identify(a_key(9).text)


async def test_clients_that_leave_make_room(
    authentication: Authentication, accounts: FakeAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "MAX_WAITING", 2)
    accounts.may_answer.clear()
    for number in range(6):
        leaving = asyncio.create_task(authentication.identify(a_key(number).text))
        await asyncio.sleep(0.001)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
    accounts.may_answer.set()
    with pytest.raises(Unauthorized):
        await authentication.identify(a_key(9).text)


async def test_nobody_asks_for_keys_whose_clients_have_left(
    authentication: Authentication, accounts: FakeAccounts
) -> None:
    """However slow the database is, no more keys are kept than requests wait."""
    accounts.may_answer.clear()
    kept = a_key(1000)
    accounts.keys[kept.digest] = a_known_key(kept)
    first = asyncio.create_task(authentication.identify(kept.text))
    await asyncio.sleep(0)
    stays = [asyncio.create_task(authentication.identify(a_key(1001).text)) for _ in range(2)]
    leaving = [asyncio.create_task(authentication.identify(a_key(number).text)) for number in range(100)]
    await asyncio.sleep(0)
    for task in (*leaving, stays[0]):
        task.cancel()
    await asyncio.wait([*leaving, stays[0]])
    accounts.may_answer.set()
    assert (await first).tenant == "t"
    with pytest.raises(Unauthorized):
        await stays[1]
    assert accounts.asked == [1, 1], "for the keys of the two clients that stay"


async def test_wait_for_a_slow_database_ends(
    authentication: Authentication, accounts: FakeAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "PATIENCE_S", 0.02)
    accounts.may_answer.clear()
    with pytest.raises(StateUnavailable):
        await authentication.identify(a_key().text)
    accounts.may_answer.set()


async def test_what_is_remembered_is_bounded(
    authentication: Authentication, accounts: FakeAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "MAX_REMEMBERED", 10)
    keys = [a_key(number) for number in range(50)]
    for key in keys[:25]:
        accounts.keys[key.digest] = a_known_key(key)
    for key in keys:
        if key.digest in accounts.keys:
            await authentication.identify(key.text)
            await authentication.identify(keys[0].text)
        else:
            with pytest.raises(Unauthorized):
                await authentication.identify(key.text)
    assert len(authentication._keys._found) == len(authentication._keys._absent) == 10
    await authentication.identify(keys[24].text)
    assert accounts.asked == [1] * 50  # neither the one that is used all the time nor the newest is forgotten


async def test_close_refuses_who_waits(authentication: Authentication, accounts: FakeAccounts) -> None:
    accounts.may_answer.clear()
    waiting = asyncio.create_task(authentication.identify(a_key().text))
    await asyncio.sleep(0.01)
    await authentication.close()
    with pytest.raises(StateUnavailable):
        await waiting


async def test_started_authentication_follows_and_writes_uses(
    accounts: FakeAccounts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLLOW_S", 0.01)
    monkeypatch.setattr(module, "TOUCH_S", 0.05)
    authentication = made_authentication(accounts, clock)
    authentication.start()
    key = a_key()
    accounts.put(key, a_known_key(key))
    principal = await authentication.identify(key.text)
    await asyncio.sleep(0.1)
    assert accounts.touched == {principal.key: clock.now}
    accounts.fault = StateUnavailable("away", 1.0)
    await asyncio.sleep(0.05)
    accounts.fault = None
    accounts.put(key, a_known_key(key, is_revoked=True))
    with pytest.raises(Unauthorized):
        for _ in range(300):
            await authentication.identify(key.text)
            await asyncio.sleep(0.01)
    await authentication.close()


async def test_uses_that_cannot_be_written_are_lost_and_nothing_else(
    authentication: Authentication, accounts: FakeAccounts
) -> None:
    key = a_key()
    accounts.keys[key.digest] = a_known_key(key)
    await authentication.identify(key.text)
    accounts.fault = StateUnavailable("away", 1.0)
    await authentication.write_uses()
    accounts.fault = None
    await authentication.write_uses()
    assert accounts.touched == {}


async def test_token_is_refused_where_there_is_no_issuer(authentication: Authentication) -> None:
    with pytest.raises(Unauthorized, match="no tokens"):
        await authentication.identify("eyJhbGciOiJub25lIn0.e30.")

"""Accounts in a real PostgreSQL: what operators do, and what is logged of it."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException

from api.identity.keys import digest
from api.identity.ports import AccountStanding, KnownKey, ProjectName
from api.identity.rights import DEFAULT_RIGHTS, Right
from api.identity.settings import NO_SETTINGS, SettingsChange, TenantSettings
from api.identity.tenants import tenant_of_key
from api.limits.limits import ScopeKind, buckets_of
from api.state.postgres.accounts import known_accounts
from api.state.postgres.accounts.api_keys import KeyChange
from api.state.postgres.accounts.tenant_accounts import TenantChange
from cluster.config.tenants.limits import Limits
from cluster.errors import Conflict, InvalidRequest, NotFound
from tests.component.accounts import OPERATOR, Accounts, accounts_at


async def look_up(accounts: Accounts, text: str) -> KnownKey | None:
    return (await accounts.known.look_up([digest(text)])).get(digest(text))


async def found(accounts: Accounts, text: str) -> KnownKey:
    key = await look_up(accounts, text)
    assert key is not None
    return key


async def actions(accounts: Accounts, tenant: str) -> list[str]:
    return [change.action for change in (await accounts.tenants.changes(tenant, None, 100)).data]


def run(url: str, tenant: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
        connection.execute(statement.encode())


async def test_new_tenant_has_a_default_project_and_no_key(accounts: Accounts) -> None:
    tenant, project = await accounts.tenants.create("team", OPERATOR)
    assert (tenant.status, tenant.settings, len(tenant.id)) == ("active", {}, 16)
    assert (project.name, project.is_default, project.tenant) == ("default", True, tenant.id)
    assert (await accounts.tenants.find("team"), await accounts.tenants.find(tenant.id)) == (tenant, tenant)
    assert (await accounts.keys.page(tenant.id, None, None, 10)).data == []


async def test_tenant_of_an_old_key_is_adopted_with_its_id(accounts: Accounts) -> None:
    old = tenant_of_key("sk-alice")
    tenant, _ = await accounts.tenants.create("alice", OPERATOR, adopted=old)
    assert tenant.id == old
    with pytest.raises(Conflict) as caught:
        await accounts.tenants.create("alice again", OPERATOR, adopted=old)
    assert caught.value.code == "tenant_exists"


@pytest.mark.parametrize("adopted", ["anonymous", "*", "", "0123456789ABCDEF", "0" * 17])
async def test_only_an_id_of_a_tenant_can_be_adopted(accounts: Accounts, adopted: str) -> None:
    if adopted:
        with pytest.raises(InvalidRequest):
            await accounts.tenants.create("alice", OPERATOR, adopted=adopted)


async def test_two_tenants_have_two_names(accounts: Accounts) -> None:
    await accounts.tenant("team")
    with pytest.raises(Conflict) as caught:
        await accounts.tenant("team")
    assert caught.value.code == "name_taken"
    other = await accounts.tenant("other")
    with pytest.raises(Conflict):
        await accounts.tenants.change(other, OPERATOR, TenantChange(name="team"))
    assert (await accounts.tenants.change(other, OPERATOR, TenantChange(name="third"))).name == "third"


@pytest.mark.parametrize("name", ["", " ", "a ", "a\nb", "a\x00", "\ud800", "x" * 201])
async def test_name_that_cannot_be_read_is_refused(accounts: Accounts, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await accounts.tenant(name)


async def test_key_is_found_by_its_text_with_all_that_authentication_needs(accounts: Accounts) -> None:
    settings = TenantSettings(limits=Limits(tokens_per_day=5), weight=2.0)
    tenant, _ = await accounts.tenants.create("team", OPERATOR, settings=settings)
    project = await accounts.projects.create(tenant.id, "search", OPERATOR, Limits(requests_per_minute=3))
    rights = frozenset({Right.INFERENCE})
    issued = await accounts.key(
        tenant.id, project=project.id, rights=rights, models=frozenset({"m"}), limits=Limits(cost_per_day=7)
    )
    key = await found(accounts, issued.text)
    assert (key.standing, key.is_revoked, key.expires_at) == (AccountStanding.ACTIVE, False, None)
    principal = key.principal
    assert (principal.tenant, principal.project, principal.key) == (tenant.id, project.id, issued.key.id)
    assert (principal.rights, principal.models, principal.end_user) == (rights, frozenset({"m"}), None)
    assert (principal.settings, principal.project_limits) == (settings, Limits(requests_per_minute=3))
    assert principal.key_limits == Limits(cost_per_day=7)
    assert issued.key.handle == key.handle and key.handle in issued.text


async def test_text_and_digest_of_a_key_are_in_no_list_and_no_log(accounts: Accounts, postgres: str) -> None:
    tenant = await accounts.tenant()
    issued = await accounts.key(tenant)
    rotated = await accounts.keys.rotate(issued.key.id, OPERATOR)
    shown = msgspec.json.encode(
        [(await accounts.keys.page(tenant, None, None, 10)).data, (await accounts.tenants.changes(None, None, 99)).data]
    ).decode()
    for text in (issued.text, rotated.text):
        assert text[18:] not in shown and digest(text).hex() not in shown
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        stored = connection.execute("SELECT k::text, c::text FROM api_keys k, account_changes c").fetchall()
    assert stored and not any(text[18:] in str(row) for row in stored for text in (issued.text, rotated.text))


async def test_many_digests_are_looked_up_together(accounts: Accounts) -> None:
    first, second = await accounts.tenant("first"), await accounts.tenant("second")
    texts = [(await accounts.key(tenant)).text for tenant in (first, second, first)]
    known = await accounts.known.look_up([*map(digest, texts), bytes(32)])
    assert [known[digest(text)].tenant for text in texts] == [first, second, first]
    assert len(known) == 3


async def test_suspension_and_archiving_show_in_the_look_up(accounts: Accounts) -> None:
    tenant = await accounts.tenant()
    project = await accounts.projects.create(tenant, "search", OPERATOR)
    text = (await accounts.key(tenant, project=project.id)).text
    await accounts.tenants.suspend(tenant, OPERATOR)
    assert (await found(accounts, text)).standing is AccountStanding.SUSPENDED
    await accounts.tenants.resume(tenant, OPERATOR)
    assert (await found(accounts, text)).standing is AccountStanding.ACTIVE
    await accounts.projects.archive(project.id, OPERATOR)
    assert (await found(accounts, text)).standing is AccountStanding.ARCHIVED
    with pytest.raises(Conflict) as caught:
        await accounts.key(tenant, project=project.id)
    assert caught.value.code == "project_archived"
    assert (await accounts.projects.create(tenant, "search", OPERATOR)).id != project.id  # its name is free


async def test_default_project_is_never_archived(accounts: Accounts) -> None:
    _, project = await accounts.tenants.create("team", OPERATOR)
    with pytest.raises(Conflict) as caught:
        await accounts.projects.archive(project.id, OPERATOR)
    assert caught.value.code == "default_project"


async def test_projects_of_a_token_are_found_by_id_or_as_the_default(accounts: Accounts) -> None:
    tenant, default = await accounts.tenants.create("team", OPERATOR)
    other = await accounts.tenant("other")
    project = await accounts.projects.create(tenant.id, "search", OPERATOR)
    by_default, by_id = ProjectName(tenant.id, None), ProjectName(tenant.id, project.id)
    of_another = ProjectName(other, project.id)
    known = await accounts.known.look_up_projects([by_default, by_id, of_another, ProjectName("nobody", None)])
    assert known.keys() == {by_default, by_id}
    assert known[by_default].principal.project == default.id and known[by_id].principal.project == project.id
    assert known[by_id].principal.rights == frozenset()


async def test_limits_and_settings_change_one_by_one(accounts: Accounts) -> None:
    tenant, project = await accounts.tenants.create("team", OPERATOR)
    limits = await accounts.projects.change(project.id, OPERATOR, {"tokens_per_day": 9})
    assert limits.limits == {"tokens_per_day": 9}
    again = await accounts.projects.change(project.id, OPERATOR, {"tokens_per_day": None, "cost_per_month": 1})
    assert again.limits == {"tokens_per_day": None, "cost_per_month": 1}
    changed = await accounts.tenants.change(tenant.id, OPERATOR, TenantChange(settings=SettingsChange(weight=3.0)))
    assert changed.settings == {"weight": 3.0}
    with pytest.raises(InvalidRequest):
        await accounts.tenants.change(tenant.id, OPERATOR, TenantChange(settings=SettingsChange(weight=-1.0)))
    (log,) = [c for c in (await accounts.tenants.changes(tenant.id, None, 9)).data if c.action == "tenant.set"]
    assert (log.before, log.after) == ({"settings": {}}, {"settings": {"weight": 3.0}})


async def test_concurrent_changes_of_settings_are_all_kept(accounts: Accounts, postgres: str) -> None:
    tenant = await accounts.tenant()

    async def add(name: str) -> None:
        async with accounts_at(postgres) as own:
            settings = SettingsChange(model_limits={name: {"tokens_per_day": 1}})
            await own.tenants.change(tenant, name, TenantChange(settings=settings))

    await asyncio.gather(*(add(f"m{number}") for number in range(8)))
    settings = (await accounts.tenants.find(tenant)).settings
    assert len(settings["model_limits"]) == 8


async def test_key_changes_keep_what_is_not_named(accounts: Accounts) -> None:
    tenant = await accounts.tenant()
    issued = await accounts.key(tenant, limits=Limits(requests_per_minute=5))
    change = KeyChange(models=frozenset({"b", "a"}), limits={"tokens_per_day": 4})
    changed = await accounts.keys.change(issued.key.id, change, "alice")
    assert (changed.name, set(changed.rights), changed.models) == ("laptop", set(DEFAULT_RIGHTS), ["a", "b"])
    assert changed.limits == {"requests_per_minute": 5, "tokens_per_day": 4}
    cleared = await accounts.keys.change(issued.key.id, KeyChange(models=None, name="phone"), "alice")
    assert (cleared.models, cleared.name) == (None, "phone")
    log = (await accounts.tenants.changes(tenant, None, 2)).data
    assert [(entry.actor, entry.action, entry.object) for entry in log] == [("alice", "key.change", issued.key.id)] * 2
    assert log[0].before == {"models": ["a", "b"], "name": "laptop"} and log[0].after == {
        "models": None,
        "name": "phone",
    }
    before = await accounts.known.changes(None)
    await accounts.keys.change(issued.key.id, KeyChange(name="phone"), "alice")
    assert (await actions(accounts, tenant)).count("key.change") == 2  # nothing was different
    assert await accounts.known.changes(before.version) == (before.version, frozenset())


async def test_revoked_key_stays_revoked(accounts: Accounts, postgres: str) -> None:
    tenant = await accounts.tenant()
    issued = await accounts.key(tenant)
    revoked = await accounts.keys.revoke(issued.key.id, OPERATOR)
    assert revoked.revoked_at is not None
    assert await accounts.keys.revoke(issued.key.id, OPERATOR) == revoked
    assert (await actions(accounts, tenant)).count("key.revoke") == 1
    assert (await found(accounts, issued.text)).is_revoked
    for refused in (
        accounts.keys.rotate(issued.key.id, OPERATOR),
        accounts.keys.change(issued.key.id, KeyChange(name="x"), OPERATOR),
    ):
        with pytest.raises(Conflict) as caught:
            await refused
        assert caught.value.code == "key_revoked"
    with pytest.raises(RaiseException):
        run(postgres, tenant, "UPDATE api_keys SET revoked_at = NULL")


async def test_rotated_key_goes_on_until_the_overlap_is_over(accounts: Accounts) -> None:
    tenant = await accounts.tenant()
    old = await accounts.key(tenant, rights=frozenset(Right), limits=Limits(tokens_per_day=3))
    new = await accounts.keys.rotate(old.key.id, OPERATOR)
    (rotated, made) = (await accounts.keys.page(tenant, None, None, 9)).data
    assert rotated.rotated_to == made.id == new.key.id and made.expires_at is None
    assert (made.rights, made.limits, made.name) == (rotated.rights, rotated.limits, rotated.name)
    assert rotated.expires_at is not None
    assert abs(rotated.expires_at - datetime.now(UTC) - timedelta(days=1)) < timedelta(minutes=1)
    assert (await found(accounts, old.text)).expires_at == pytest.approx(rotated.expires_at.timestamp())
    with pytest.raises(Conflict) as caught:
        await accounts.keys.rotate(old.key.id, OPERATOR)
    assert caught.value.code == "key_rotated" and new.key.id in str(caught.value)


async def test_rotation_never_makes_a_key_live_longer(accounts: Accounts) -> None:
    tenant = await accounts.tenant()
    soon = time.time() + 60
    old = await accounts.key(tenant, expires_at=soon)
    new = await accounts.keys.rotate(old.key.id, OPERATOR)
    for text in (old.text, new.text):
        assert (await found(accounts, text)).expires_at == pytest.approx(soon)
    await accounts.keys.rotate(new.key.id, OPERATOR, 0)
    assert ((await found(accounts, new.text)).expires_at or 0) <= time.time() + 1
    with pytest.raises(InvalidRequest):
        await accounts.keys.rotate(old.key.id, OPERATOR, -1)
    with pytest.raises(InvalidRequest):
        await accounts.keys.rotate(old.key.id, OPERATOR, float("nan"))


async def test_limits_of_a_key_are_those_of_all_keys_that_rotations_make_of_it(
    accounts: Accounts, postgres: str
) -> None:
    tenant = await accounts.tenant()
    first, other = await accounts.key(tenant), await accounts.key(tenant)
    second = await accounts.keys.rotate(first.key.id, OPERATOR)
    third = await accounts.keys.rotate(second.key.id, OPERATOR)
    principals = [(await found(accounts, issued.text)).principal for issued in (first, second, third, other)]
    keys = [first.key.id, second.key.id, third.key.id, other.key.id]
    assert [principal.key for principal in principals] == keys
    assert [principal.key_lineage for principal in principals] == [keys[0], keys[0], keys[0], keys[3]]
    drawn_on = [
        buckets_of(principal.caller(""), "m", {ScopeKind.KEY: Limits(requests_per_minute=1)}, str)
        for principal in principals
    ]
    assert drawn_on[0] == drawn_on[1] == drawn_on[2] != drawn_on[3]
    with pytest.raises(RaiseException):
        run(postgres, tenant, "UPDATE api_keys SET lineage = id")


async def test_two_rotations_at_once_make_one_key(accounts: Accounts, postgres: str) -> None:
    tenant = await accounts.tenant()
    old = await accounts.key(tenant)

    async def rotate() -> bool:
        async with accounts_at(postgres) as own:
            try:
                await own.keys.rotate(old.key.id, OPERATOR)
            except Conflict:
                return False
            return True

    assert sum(await asyncio.gather(rotate(), rotate(), rotate())) == 1
    assert len((await accounts.keys.page(tenant, None, None, 9)).data) == 2


@pytest.mark.parametrize("at", [-1.0, 1e300, float("nan"), float("inf"), 1.0])
async def test_time_that_is_none_or_has_passed_is_refused(accounts: Accounts, at: float) -> None:
    tenant = await accounts.tenant()
    with pytest.raises(InvalidRequest):
        await accounts.key(tenant, expires_at=at)
    assert (await accounts.keys.page(tenant, None, None, 9)).data == []


async def test_what_does_not_exist_is_not_found(accounts: Accounts) -> None:
    other = await accounts.projects.page(await accounts.tenant("other"), None, 1)
    tenant = await accounts.tenant()
    for asked in (
        accounts.tenants.find("nobody"),
        accounts.tenants.suspend("nobody", OPERATOR),
        accounts.projects.create("nobody", "p", OPERATOR),
        accounts.projects.archive("proj_0", OPERATOR),
        accounts.key("nobody"),
        accounts.key(tenant, project="proj_0"),
        accounts.key(tenant, project=other.data[0].id),
        accounts.keys.revoke("key_0", OPERATOR),
    ):
        with pytest.raises(NotFound):
            await asked
    assert (await accounts.known.look_up([bytes(32)])) == {}


async def test_lists_come_in_pages(accounts: Accounts) -> None:
    tenants = sorted([await accounts.tenant(f"t{number}") for number in range(3)])
    keys = [(await accounts.key(tenants[0], name=f"k{number}")).key.id for number in range(3)]
    first = await accounts.tenants.page(None, 2)
    rest = await accounts.tenants.page(first.data[-1].id, 2)
    assert [t.id for t in first.data + rest.data] == tenants and (first.has_more, rest.has_more) == (True, False)
    some = await accounts.keys.page(tenants[0], None, None, 2)
    others = await accounts.keys.page(tenants[0], None, some.data[-1].id, 2)
    assert [key.id for key in some.data + others.data] == keys and (some.has_more, others.has_more) == (True, False)
    newest = await accounts.tenants.changes(tenants[0], None, 2)
    older = await accounts.tenants.changes(tenants[0], newest.data[-1].sequence, 9)
    assert [change.action for change in newest.data + older.data] == ["key.create"] * 3 + [
        "project.create",
        "tenant.create",
    ]


async def test_each_change_raises_the_version_and_names_its_tenant(accounts: Accounts) -> None:
    first, second = await accounts.tenant("first"), await accounts.tenant("second")
    start = (await accounts.known.changes(None)).version
    assert await accounts.known.changes(start) == (start, frozenset())
    issued = await accounts.key(first)
    one = await accounts.known.changes(start)
    assert one.version > start and one.tenants == frozenset({first})
    await accounts.known.touch({issued.key.id: time.time()})
    assert await accounts.known.changes(one.version) == (one.version, frozenset())
    await accounts.tenants.suspend(second, OPERATOR)
    two = await accounts.known.changes(one.version)
    assert two.version > one.version and two.tenants == frozenset({second})
    assert (await accounts.known.changes(start)).tenants == frozenset({first, second})


async def test_change_by_hand_raises_the_version_too(accounts: Accounts, postgres: str) -> None:
    tenant = await accounts.tenant()
    await accounts.key(tenant)
    before = (await accounts.known.changes(None)).version
    run(postgres, tenant, "UPDATE api_keys SET revoked_at = now()")
    after = await accounts.known.changes(before)
    assert after.version > before and after.tenants == frozenset({tenant})


async def test_more_tenants_than_a_look_counts_are_all(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_accounts, "MOST_TENANTS", 1)
    start = (await accounts.known.changes(None)).version
    await accounts.tenant("first")
    assert (await accounts.known.changes(start)).tenants is not None
    await accounts.tenant("second")
    assert (await accounts.known.changes(start)).tenants is None


async def test_last_use_never_goes_back(accounts: Accounts) -> None:
    tenant = await accounts.tenant()
    issued = await accounts.key(tenant)
    await accounts.known.touch({issued.key.id: 2000.0, "key_gone": 1.0})
    await accounts.known.touch({issued.key.id: 1000.0})
    (key,) = (await accounts.keys.page(tenant, None, None, 1)).data
    assert key.last_used_at == datetime.fromtimestamp(2000, UTC)


async def test_nothing_waits_for_a_time_of_last_use(accounts: Accounts, postgres: str) -> None:
    tenant = await accounts.tenant()
    first, second = await accounts.key(tenant), await accounts.key(tenant)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
        connection.execute("SELECT FROM api_keys WHERE id = %s FOR UPDATE", [first.key.id])
        async with asyncio.timeout(1):
            await accounts.known.touch({first.key.id: 2000.0, second.key.id: 2000.0})
    used = [key.last_used_at is not None for key in (await accounts.keys.page(tenant, None, None, 2)).data]
    assert used == [False, True]


@pytest.mark.parametrize("table", ["accounts", "projects", "api_keys", "account_changes", "accounts_version"])
async def test_nothing_is_deleted(accounts: Accounts, postgres: str, table: str) -> None:
    tenant = await accounts.tenant()
    await accounts.key(tenant)
    with pytest.raises(RaiseException):
        run(postgres, tenant, f"DELETE FROM {table}")
    if table != "accounts_version":
        with pytest.raises(RaiseException):
            run(postgres, tenant, f"TRUNCATE {table} CASCADE")


async def test_log_of_changes_is_only_appended(accounts: Accounts, postgres: str) -> None:
    tenant = await accounts.tenant()
    with pytest.raises(RaiseException):
        run(postgres, tenant, "UPDATE account_changes SET actor = 'nobody'")


async def test_tenants_do_not_see_each_other(accounts: Accounts, postgres: str) -> None:
    first, second = await accounts.tenant("first"), await accounts.tenant("second")
    await accounts.key(second)
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', %s, true)", [first])
        for table in ("accounts", "projects", "api_keys", "account_changes"):
            seen = connection.execute(f"SELECT DISTINCT tenant_id FROM {table}".encode()).fetchall()
            assert {tenant for (tenant,) in seen} <= {first}
    with pytest.raises(InsufficientPrivilege):
        columns = "tenant_id, actor, action, object, after"
        run(postgres, first, f"INSERT INTO account_changes ({columns}) VALUES ('{second}', '', '', '', '{{}}')")
    with psycopg.connect(postgres) as connection:  # in the name of nobody
        assert connection.execute("SELECT FROM api_keys").fetchall() == []
        assert connection.execute("SELECT FROM accounts_version").fetchall() == []


async def test_settings_that_cannot_be_read_break_no_other_look_up(accounts: Accounts, postgres: str) -> None:
    broken, sound = await accounts.tenant("broken"), await accounts.tenant("sound")
    texts = [(await accounts.key(tenant)).text for tenant in (broken, sound)]
    run(postgres, broken, """UPDATE accounts SET settings = '{"weight": "heavy"}'""")
    known = await accounts.known.look_up([*map(digest, texts)])
    assert [known[digest(text)].standing for text in texts] == [AccountStanding.UNREADABLE, AccountStanding.ACTIVE]
    run(postgres, sound, """UPDATE accounts SET settings = '{"of_a_newer_version": 1}'""")
    assert (await found(accounts, texts[1])).principal.settings == NO_SETTINGS

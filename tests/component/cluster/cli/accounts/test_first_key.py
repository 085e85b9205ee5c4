"""The first API key, which `baton serve` makes on one machine."""

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.identity.keys import digest
from api.identity.rights import ALL_RIGHTS
from api.state.lifecycle import ChatState
from cluster.cli.accounts import first_key
from cluster.cli.accounts.first_key import KEY_FILE, TENANT, how_to_send_a_key, keep_first_key
from cluster.config.application import parse
from cluster.config.environment import DATABASE_URL_VARIABLE
from cluster.config.state import StateConfig
from tests.component.emptied import emptied


@pytest.fixture
async def state(postgres: str, tmp_path: Path) -> AsyncIterator[ChatState]:
    emptied(postgres)
    urls: dict[str, Any] = {"database_url": postgres, "redis_url": "redis://nowhere"}
    opened = ChatState(StateConfig(**urls, data_dir=str(tmp_path)), serves=True)
    await opened.look()
    yield opened
    await opened.close()


async def tenants(state: ChatState) -> list[str]:
    return [tenant.name for tenant in (await state.accounts().tenants.page(None, 10)).data]


async def test_key_is_made_once_and_its_owner_alone_can_read_it(state: ChatState, tmp_path: Path) -> None:
    file = tmp_path / KEY_FILE
    assert await keep_first_key(state, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    (known,) = (await state.known_accounts.look_up([digest(text.strip())])).values()
    assert known.principal.rights == ALL_RIGHTS and text.endswith("\n")
    assert await keep_first_key(state, file)
    assert file.read_text() == text and await tenants(state) == [TENANT]
    assert [name for name in os.listdir(tmp_path) if KEY_FILE in name] == [KEY_FILE]


async def test_key_that_was_not_finished_is_made_by_the_next_start(state: ChatState, tmp_path: Path) -> None:
    """It ended between the tenant and its key."""
    await state.accounts().tenants.create(TENANT, "baton serve")
    assert await keep_first_key(state, tmp_path / KEY_FILE)
    assert await tenants(state) == [TENANT]


async def test_key_of_another_database_is_replaced(state: ChatState, tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("sk-baton-of-another-database\n")
    assert await keep_first_key(state, tmp_path / KEY_FILE)
    assert "another" not in (tmp_path / KEY_FILE).read_text()
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


async def test_no_key_is_made_where_an_operator_has_made_accounts(state: ChatState, tmp_path: Path) -> None:
    await state.accounts().tenants.create("team", "operator")
    assert not await keep_first_key(state, tmp_path / KEY_FILE)
    assert await tenants(state) == ["team"] and not (tmp_path / KEY_FILE).exists()


@pytest.mark.parametrize("end", ["revoked", "suspended"])
async def test_key_that_an_operator_has_ended_is_neither_shown_nor_replaced(
    state: ChatState, tmp_path: Path, end: str
) -> None:
    assert await keep_first_key(state, tmp_path / KEY_FILE)
    (tenant,) = (await state.accounts().tenants.page(None, 2)).data
    if end == "suspended":
        await state.accounts().tenants.suspend(tenant.id, "operator")
    else:
        (key,) = (await state.accounts().keys.page(tenant.id, None, None, 2)).data
        await state.accounts().keys.revoke(key.id, "operator")
    assert not await keep_first_key(state, tmp_path / KEY_FILE)


@pytest.mark.parametrize(
    ("args", "is_here", "told"),
    [
        ({"identity": {"required": False}}, True, ""),
        ({"state": {"database_url": "postgresql://there/baton"}}, True, first_key.WITHOUT_KEY),
        ({}, False, first_key.WITHOUT_KEY),
    ],
)
def test_elsewhere_an_operator_makes_the_keys(args: dict[str, Any], is_here: bool, told: str) -> None:
    config = parse({"model": "m", **args})
    assert how_to_send_a_key(config, is_on_this_machine=is_here) == told


def test_variable_of_an_external_database_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_URL_VARIABLE, "postgresql://there/baton")
    assert how_to_send_a_key(parse({"model": "m"}), is_on_this_machine=True) == first_key.WITHOUT_KEY


def test_user_is_told_where_the_key_is_and_not_the_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    config = parse({"model": "m", "state": {"data_dir": str(data)}})
    told = how_to_send_a_key(config, is_on_this_machine=True)
    assert f'export OPENAI_API_KEY="$(cat {data / KEY_FILE})"' in told
    assert (data / KEY_FILE).read_text().strip() not in told
    assert how_to_send_a_key(config, is_on_this_machine=True) == told


def test_service_goes_on_if_the_key_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    config = parse({"model": "m", "state": {"data_dir": str(tmp_path / "data")}})
    told = how_to_send_a_key(config, is_on_this_machine=True)
    assert told.startswith(first_key.WITHOUT_KEY) and "could not be made" in told

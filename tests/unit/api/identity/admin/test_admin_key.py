"""The admin key: where it comes from, and whom it admits."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from api.identity.admin import admin_key as module
from api.identity.admin.admin_access import AdminAccess
from api.identity.admin.admin_key import ADMIN_KEY_FILE, ADMIN_PREFIX, established_admin_key, known_admin_key
from api.identity.credentials import Headers
from api.identity.keys import new_key
from cluster.config.environment import ADMIN_KEY_VARIABLE
from cluster.errors import Unauthorized

KEY = f"{ADMIN_PREFIX}{'k' * 40}"
OF_TENANT = new_key(bytes(range(48))).text


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADMIN_KEY_VARIABLE, raising=False)


def bearing(key: str) -> Headers:
    return [(b"authorization", f"Bearer {key}".encode())]


def refusals(credential: str) -> float:
    return REGISTRY.get_sample_value("baton_admin_refusals_total", {"credential": credential}) or 0.0


def test_first_start_makes_a_file_that_its_owner_alone_can_read(tmp_path: Path) -> None:
    key = established_admin_key(tmp_path / "data")
    file = tmp_path / "data" / ADMIN_KEY_FILE
    assert file.read_text() == f"{key}\n" and key.startswith(ADMIN_PREFIX) and len(key) > 50
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert established_admin_key(tmp_path / "data") == known_admin_key(tmp_path / "data") == key
    assert os.listdir(tmp_path / "data") == [ADMIN_KEY_FILE]
    assert established_admin_key(tmp_path / "other") != key


def test_replicas_that_start_together_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)  # none of them sees the file of another in time
    with ThreadPoolExecutor(8) as replicas:
        assert len(set(replicas.map(established_admin_key, [tmp_path] * 8))) == 1
    assert os.listdir(tmp_path) == [ADMIN_KEY_FILE]


def test_folder_that_cannot_be_written_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=f"cannot be kept in {tmp_path / 'file'}.*set {ADMIN_KEY_VARIABLE}"):
        established_admin_key(tmp_path / "file")


def test_environment_wins_and_no_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, KEY)
    assert established_admin_key(tmp_path) == known_admin_key(tmp_path) == KEY
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["secret-of-a-person", KEY[:-10], f"{KEY} {KEY}", f"{KEY}é", OF_TENANT])
def test_key_of_another_form_is_refused_and_not_shown(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ADMIN_KEY_FILE).write_text(text)
    for read in (established_admin_key, known_admin_key):
        with pytest.raises(
            ValueError, match=f"the admin key must be {ADMIN_PREFIX} .*{ADMIN_KEY_FILE}.*delete it"
        ) as no:
            read(tmp_path)
        assert text not in str(no.value)
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, text)
    with pytest.raises(ValueError, match=f"and is not: {ADMIN_KEY_VARIABLE}"):
        established_admin_key(tmp_path)


def test_without_a_key_it_is_said_where_one_can_be(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=f"set {ADMIN_KEY_VARIABLE} .*{tmp_path / ADMIN_KEY_FILE}"):
        known_admin_key(tmp_path)
    assert os.listdir(tmp_path) == []


def test_made_keys_have_the_form_of_one(tmp_path: Path) -> None:
    for number in range(50):
        assert module._FORM.fullmatch(established_admin_key(tmp_path / str(number)))


async def test_admin_key_is_admitted_on_every_path() -> None:
    access = AdminAccess(KEY)
    for path in ("/metrics", "/admin/tenants", "/nothing", "/", "/healthz"):
        assert await access.admit(path, bearing(KEY)) == {}


@pytest.mark.parametrize(
    ("headers", "says", "counts"),
    [
        ([], "needs the admin key", "missing"),
        (bearing(f"{KEY}k"), "not the admin key of this service", "wrong"),
        (bearing(KEY[:-1]), "not the admin key of this service", "wrong"),
        (bearing("x"), "not the admin key of this service", "wrong"),
        (bearing(OF_TENANT), "no API key of a tenant", "tenant_key"),
        ([(b"authorization", b"Basic eDp5")], "has no bearer token", "malformed"),
        ([(b"x-api-key", KEY.encode())], "does not read the header x-api-key", "malformed"),
        ([*bearing(KEY), *bearing(KEY)], "several Authorization headers", "malformed"),
    ],
)
async def test_everything_else_is_refused_and_counted(headers: Headers, says: str, counts: str) -> None:
    before = refusals(counts)
    with pytest.raises(Unauthorized, match=says) as refused:
        await AdminAccess(KEY).admit("/metrics", headers)
    assert refused.value.code == "invalid_api_key" and "kkkk" not in str(refused.value)
    assert refusals(counts) == before + 1


async def test_where_no_key_is_required_everybody_is_admitted() -> None:
    for headers in ([], bearing(OF_TENANT), [(b"authorization", b"Basic eDp5")]):
        assert await AdminAccess(None).admit("/metrics", headers) == {}

"""`baton tenant`, `baton project` and `baton key` over a real PostgreSQL."""

import asyncio
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.identity.authentication import Authentication
from api.identity.tenants import tenant_of_key
from cluster.cli import main as cli
from cluster.errors import ServingError
from tests.component.accounts import accounts_at
from tests.component.emptied import emptied

Baton = Callable[..., int]
Json = Callable[..., list[Any]]


@pytest.fixture
def baton(postgres: str, redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Baton:
    """Runs `baton` with these arguments. Returns its exit status."""
    emptied(postgres)
    conf = tmp_path / "conf.yaml"
    state = {"database_url": postgres, "redis_url": redis, "data_dir": str(tmp_path)}
    conf.write_text(yaml.safe_dump({"applications": [{"args": {"model": "m", "state": state}}]}))

    def run(*arguments: str, typed: str = "") -> int:
        monkeypatch.setattr(sys, "argv", ["baton", *arguments, "--conf", str(conf)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return run


@pytest.fixture
def printed(baton: Baton, capsys: pytest.CaptureFixture[str]) -> Json:
    """Runs `baton` with --json. Returns what it has printed."""

    def run(*arguments: str, typed: str = "") -> list[Any]:
        assert baton(*arguments, "--json", typed=typed) == 0, capsys.readouterr().err
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def answer_to(postgres: str, text: str) -> str:
    """The tenant of a key, or the code of the error."""

    async def ask() -> str:
        async with accounts_at(postgres) as accounts:
            authentication = Authentication(accounts.known, time.time, 300.0)
            try:
                return (await authentication.identify(text)).tenant
            except ServingError as error:
                return str(error.code)
            finally:
                await authentication.close()

    return asyncio.run(ask())


def test_tenant_gets_a_key_that_works_until_it_is_revoked(printed: Json, postgres: str) -> None:
    (made,) = printed("tenant", "create", "search team")
    tenant = made["tenant"]["id"]
    (issued,) = printed("key", "create", "search team", "laptop")
    assert answer_to(postgres, issued["text"]) == tenant
    printed("tenant", "suspend", tenant)
    assert answer_to(postgres, issued["text"]) == "tenant_suspended"
    printed("tenant", "resume", "search team")
    assert answer_to(postgres, issued["text"]) == tenant
    (rotated,) = printed("key", "rotate", issued["key"]["id"], "--overlap", "0s")
    assert answer_to(postgres, issued["text"]) == "invalid_api_key"
    assert answer_to(postgres, rotated["text"]) == tenant
    printed("key", "revoke", rotated["key"]["id"])
    assert answer_to(postgres, rotated["text"]) == "invalid_api_key"


def test_lists_show_what_was_made_and_no_secret(
    baton: Baton, printed: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    printed("tenant", "create", "blue", "--limit", "tokens_per_day=5", "--weight", "2")
    (project,) = printed("project", "create", "blue", "chat", "--limit", "requests_per_minute=9")
    (issued,) = printed("key", "create", "blue", "ci", "--project", project["id"], "--expires", "30d")
    (tenant,) = printed("tenant", "list")
    assert (tenant["name"], tenant["settings"]) == ("blue", {"limits": {"tokens_per_day": 5}, "weight": 2.0})
    assert {one["name"] for one in printed("project", "list", "blue")} == {"default", "chat"}
    (key,) = printed("key", "list", "blue")
    assert key == issued["key"] and issued["text"][18:] not in json.dumps(key)
    for command in (("tenant", "list"), ("project", "list", "blue"), ("key", "list", "blue"), ("tenant", "changes")):
        assert baton(*command) == 0
        out = capsys.readouterr().out
        assert len(out.splitlines()) >= 2 and issued["text"][18:] not in out
    assert baton("key", "list", "blue", "--project", "proj_0") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_text_of_a_key_is_printed_once(baton: Baton, printed: Json, capsys: pytest.CaptureFixture[str]) -> None:
    printed("tenant", "create", "blue")
    assert baton("key", "create", "blue", "laptop") == 0
    out = capsys.readouterr().out
    assert out.count("sk-baton-") == 1 and "shown this once" in out


def test_old_tenant_is_adopted_with_what_is_stored_for_it(
    baton: Baton, printed: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    (made,) = printed("tenant", "create", "alice", "--adopt", typed="sk-alice\n")
    assert made["tenant"]["id"] == tenant_of_key("sk-alice")
    assert baton("tenant", "create", "again", "--adopt", typed="sk-alice\n") == 1
    assert "has an account already" in capsys.readouterr().err
    assert baton("tenant", "create", "nobody", "--adopt") == 2
    capsys.readouterr()
    assert baton("tenant", "create", "nobody", "--adopt", typed="sk-baton-of-an-account\n") == 2
    assert "of an account" in capsys.readouterr().err


def test_settings_of_a_tenant_change_one_by_one(printed: Json) -> None:
    printed("tenant", "create", "blue", "--limit", "tokens_per_day=5", "--end-user-limit", "requests_per_minute=2")
    (changed,) = printed(
        "tenant", "set", "blue", "--name", "green", "--limit", "tokens_per_day=default", "--limit", "tokens_per_month=7"
    )
    assert changed["name"] == "green"
    assert changed["settings"] == {
        "limits": {"tokens_per_month": 7},
        "end_user_limits": {"requests_per_minute": 2},
    }
    (changed,) = printed("tenant", "set", "green", "--model-limit", "m:1:tokens_per_minute=3", "--weight", "0.5")
    assert changed["settings"]["model_limits"] == {"m:1": {"tokens_per_minute": 3}}
    (changed,) = printed("tenant", "set", "green", "--model-limit", "m:1:tokens_per_minute=none")
    assert changed["settings"]["model_limits"] == {"m:1": {"tokens_per_minute": None}}
    (changed,) = printed("tenant", "set", "green", "--model-limit", "m:1:tokens_per_minute=default")
    assert "model_limits" not in changed["settings"] and changed["settings"]["weight"] == 0.5


def test_tenant_opts_into_public_prefixes_and_out_of_them(printed: Json) -> None:
    printed("tenant", "create", "blue", "--weight", "2")
    for switch, expected in (("on", {"weight": 2.0, "share_prefixes": True}), ("off", {"weight": 2.0})):
        (changed,) = printed("tenant", "set", "blue", "--share-prefixes", switch)
        assert changed["settings"] == expected
    logged = printed("tenant", "changes", "blue", "--last", "2")
    assert [one["after"]["settings"].get("share_prefixes", False) for one in logged] == [False, True]


def test_tenant_has_a_best_class(printed: Json) -> None:
    printed("tenant", "create", "blue", "--best-class", "batch")
    (changed,) = printed("tenant", "set", "blue", "--best-class", "standard")
    assert changed["settings"] == {"best_class": "standard"}
    (changed,) = printed("tenant", "set", "blue", "--best-class", "interactive")
    assert changed["settings"] == {}


def test_key_changes_as_the_options_say(baton: Baton, printed: Json, capsys: pytest.CaptureFixture[str]) -> None:
    printed("tenant", "create", "blue")
    (issued,) = printed("key", "create", "blue", "ci", "--model", "a", "--model", "b", "--rights", "inference")
    key = issued["key"]["id"]
    assert (issued["key"]["models"], issued["key"]["rights"]) == (["a", "b"], ["inference"])
    (changed,) = printed("key", "change", key, "--rights", "inference,usage:read", "--expires", "2h", "--name", "cd")
    assert (changed["rights"], changed["name"], changed["models"]) == (["inference", "usage:read"], "cd", ["a", "b"])
    assert changed["expires_at"] is not None
    (changed,) = printed("key", "change", key, "--all-models", "--expires", "never", "--limit", "tokens_per_day=5")
    assert (changed["models"], changed["expires_at"], changed["limits"]) == (None, None, {"tokens_per_day": 5})
    assert baton("key", "change", key, "--all-models", "--model", "a") == 2
    assert "exclude each other" in capsys.readouterr().err


def test_project_is_archived(printed: Json, postgres: str) -> None:
    printed("tenant", "create", "blue")
    (project,) = printed("project", "create", "blue", "chat")
    (issued,) = printed("key", "create", "blue", "ci", "--project", project["id"])
    (changed,) = printed("project", "set", project["id"], "--limit", "tokens_per_day=5")
    assert changed["limits"] == {"tokens_per_day": 5}
    printed("project", "archive", project["id"])
    assert answer_to(postgres, issued["text"]) == "project_archived"


def test_log_names_who_has_changed_what(printed: Json) -> None:
    printed("tenant", "create", "blue", "--as", "alice")
    (issued,) = printed("key", "create", "blue", "ci", "--as", "bob")
    printed("key", "revoke", issued["key"]["id"])
    changes = printed("tenant", "changes", "blue")
    assert [change["action"] for change in changes] == ["key.revoke", "key.create", "project.create", "tenant.create"]
    assert [change["actor"] for change in changes[1:]] == ["bob", "alice", "alice"] and changes[0]["actor"]
    assert len(printed("tenant", "changes", "--last", "2")) == 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("tenant", "suspend", "nobody"), "there is no tenant 'nobody'"),
        (("key", "create", "nobody", "x"), "there is no tenant 'nobody'"),
        (("key", "revoke", "key_0"), "there is no key 'key_0'"),
        (("project", "archive", "proj_0"), "there is no project 'proj_0'"),
        (("tenant", "create", "a\nb"), "name must not have control characters"),
        (("tenant", "create", "blue", "--weight", "0"), "weight"),
        (("tenant", "create", "blue", "--as", " "), "actor must not have"),
    ],
)
def test_error_says_what_is_wrong(
    baton: Baton, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], message: str
) -> None:
    assert baton(*command) == 1
    error = capsys.readouterr().err
    assert error.startswith("baton: ") and message in error


@pytest.mark.parametrize(
    "command",
    [
        ("key", "create", "blue", "x", "--rights", "everything"),
        ("key", "create", "blue", "x", "--expires", "soon"),
        ("tenant", "create", "blue", "--limit", "requests=5"),
        ("tenant", "set", "blue", "--share-prefixes", "yes"),
        ("tenant", "set", "blue", "--best-class", "gold"),
        ("key",),
        ("project",),
    ],
)
def test_option_that_cannot_be_read_is_refused_before_anything_is_reached(
    baton: Baton, command: tuple[str, ...]
) -> None:
    assert baton(*command) == 2


def test_command_without_a_sub_command_still_names_the_tenant_of_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["baton", "tenant"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-alice\n"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code and capsys.readouterr().out == f"{tenant_of_key('sk-alice')}\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-baton-of-an-account\n"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and capsys.readouterr().out == ""


def test_limits_of_cost_are_refused_where_the_config_has_no_prices(
    baton: Baton, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baton("tenant", "create", "team", "--limit", "cost_per_day=none") == 0
    for options in (["--limit", "cost_per_day=5"], ["--model-limit", "m:cost_per_month=5"]):
        assert baton("tenant", "set", "team", *options) == 1
        assert "would never bind" in capsys.readouterr().err

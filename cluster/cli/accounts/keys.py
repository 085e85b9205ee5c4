"""`baton key`: makes, lists, changes, rotates and revokes API keys."""

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET

from api.identity.keys import shown
from api.identity.rights import DEFAULT_RIGHTS, Right
from api.identity.settings import NO_LIMITS, with_changes
from api.state.postgres.accounts.account_stores import AccountStores
from api.state.postgres.accounts.api_keys import OVERLAP_S, KeyChange, KeyTerms
from api.state.postgres.accounts.rows import ApiKey, IssuedKey
from cluster.cli.accounts.account_commands import (
    PAGE,
    actor_of,
    add_command,
    add_limits,
    all_of,
    print_json,
    print_list,
    with_accounts,
)
from cluster.cli.accounts.values import NEVER, duration, moment, rights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_key = parser.add_subparsers(required=True, metavar="command")
    create = add_command(of_key, "create", "make an API key, and print it: it is shown this once", _create)
    create.add_argument("tenant", help="id or name of the tenant")
    create.add_argument("name", help="a name that people read, such as what the key is for")
    create.add_argument("--project", help="id of the project (default: the default project of the tenant)")
    listed = add_command(of_key, "list", "print the keys of a tenant, the oldest first", _list, changes=False)
    listed.add_argument("tenant", help="id or name of the tenant")
    listed.add_argument("--project", help="id of a project (default: all projects)")
    change = add_command(
        of_key, "change", "change the name, the rights, the models, the limits or the end of a key", _change
    )
    change.add_argument("--name", help="a new name")
    change.add_argument("--all-models", action="store_true", help="let the key use all models")
    rotate = add_command(of_key, "rotate", "make a key in place of another one, which goes on for a while", _rotate)
    rotate.add_argument(
        "--overlap",
        type=duration,
        default=OVERLAP_S,
        metavar="DURATION",
        help="how long the old key goes on, such as 0s or 7d (default: 1d)",
    )
    revoke = add_command(of_key, "revoke", "refuse a key from now on, for good", _revoke)
    for command in (change, rotate, revoke):
        command.add_argument("key", help="id of the key")
    for command in (create, change):
        command.add_argument(
            "--rights",
            type=rights,
            metavar="RIGHT,RIGHT",
            help=f"what the key may do, of {', '.join(Right)} (new keys: {', '.join(sorted(DEFAULT_RIGHTS))})",
        )
        command.add_argument(
            "--model", action="append", metavar="MODEL", help="a model that the key may use; can be repeated"
        )
        command.add_argument(
            "--expires",
            type=moment,
            metavar="WHEN",
            help="when the key ends: a duration such as 90d, a time such as 2030-01-31T12:00:00Z, or never",
        )
        add_limits(command)


def _create(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        tenant = await accounts.tenants.find(arguments.tenant)
        terms = KeyTerms(
            name=arguments.name,
            project=arguments.project,
            rights=arguments.rights or DEFAULT_RIGHTS,
            models=None if arguments.model is None else frozenset(arguments.model),
            limits=with_changes(NO_LIMITS, dict(arguments.limit)),
            expires_at=_end(arguments.expires),
        )
        _print_issued(arguments, await accounts.keys.create(tenant.id, terms, actor_of(arguments)))

    return with_accounts(arguments, work)


def _list(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        tenant = (await accounts.tenants.find(arguments.tenant)).id
        found = all_of(
            lambda last: accounts.keys.page(tenant, arguments.project, None if last is None else last.id, PAGE)
        )
        head = ("id", "key", "name", "project", "status", "rights", "last used")
        await print_list(arguments, found, _columns, head)

    return with_accounts(arguments, work)


def _change(arguments: argparse.Namespace) -> int:
    if arguments.all_models and arguments.model:
        print("baton: --all-models and --model exclude each other", file=sys.stderr)
        return 2
    changes: dict[str, Any] = {
        "name": arguments.name,
        "rights": arguments.rights,
        "models": None if arguments.model is None else frozenset(arguments.model),
        "limits": dict(arguments.limit) or None,
    }
    named = {name: value for name, value in changes.items() if value is not None}
    if arguments.all_models:
        named["models"] = None
    expires_at = UNSET if arguments.expires is None else _end(arguments.expires)

    async def work(accounts: AccountStores) -> None:
        change = KeyChange(**named, expires_at=expires_at)
        _print_key(arguments, await accounts.keys.change(arguments.key, change, actor_of(arguments)))

    return with_accounts(arguments, work)


def _rotate(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        _print_issued(arguments, await accounts.keys.rotate(arguments.key, actor_of(arguments), arguments.overlap))

    return with_accounts(arguments, work)


def _revoke(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        _print_key(arguments, await accounts.keys.revoke(arguments.key, actor_of(arguments)))

    return with_accounts(arguments, work)


def _end(moment: float | None) -> float | None:
    return None if moment is None or moment == NEVER else moment


def _print_issued(arguments: argparse.Namespace, issued: IssuedKey) -> None:
    if arguments.json:
        print_json(issued)
        return
    _print_key(arguments, issued.key)
    print(f"\n    {issued.text}\n\nCopy the key now: it is shown this once, and stored nowhere.")


def _print_key(arguments: argparse.Namespace, key: ApiKey) -> None:
    if arguments.json:
        print_json(key)
    else:
        print(f"Key {key.id} ({key.name}) of tenant {key.tenant}, project {key.project}: {_status(key)}")


def _columns(key: ApiKey) -> tuple[str, ...]:
    used = "never" if key.last_used_at is None else f"{key.last_used_at:%Y-%m-%d %H:%M}"
    text = shown(key.handle).removeprefix("the API key ")
    return key.id, text, key.name, key.project, _status(key), ",".join(key.rights), used


def _status(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d %H:%M}"
    if key.expires_at is None:
        return "active"
    is_over = key.expires_at <= datetime.now(UTC)
    return f"{'expired' if is_over else 'active, expires'} {key.expires_at:%Y-%m-%d %H:%M}"

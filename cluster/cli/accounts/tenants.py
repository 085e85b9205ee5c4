"""`baton tenant create`, `list`, `suspend`, `resume`, `set` and `changes`."""

import argparse
import sys

from api.identity.settings import NO_SETTINGS, LimitChange, SettingsChange
from api.state.postgres.accounts.account_stores import AccountStores
from api.state.postgres.accounts.rows import AccountChange, TenantAccount
from api.state.postgres.accounts.tenant_accounts import TenantChange
from cluster.cli.accounts.account_commands import (
    PAGE,
    actor_of,
    add_command,
    add_limits,
    all_of,
    print_json,
    print_list,
    shown_limits,
    shown_time,
    typed_tenant,
    with_accounts,
)
from cluster.cli.accounts.values import limit, model_limit
from cluster.messages.ids import SloClass


def add_tenant_commands(of_tenant: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    create = add_command(of_tenant, "create", "make a tenant with its default project", _create)
    create.add_argument("name", help="a name that people read")
    create.add_argument(
        "--adopt",
        action="store_true",
        help="read an API key of the time before accounts from standard input: the tenant keeps what is stored for it",
    )
    _add_settings(create)
    add_command(of_tenant, "list", "print the tenants", _list, changes=False)
    suspend = add_command(of_tenant, "suspend", "refuse all requests of a tenant", _suspend)
    resume = add_command(of_tenant, "resume", "accept requests of a suspended tenant again", _resume)
    changed = add_command(of_tenant, "set", "change the name or the settings of a tenant", _set)
    for parser in (suspend, resume, changed):
        parser.add_argument("tenant", help="id or name of the tenant")
    changed.add_argument("--name", help="a new name")
    _add_settings(changed)
    changes = add_command(of_tenant, "changes", "print who has changed what, the newest first", _changes, changes=False)
    changes.add_argument("tenant", nargs="?", help="id or name of the tenant (default: all tenants)")
    changes.add_argument("--last", type=int, default=50, help="the number of changes (default: %(default)s)")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    add_limits(parser)
    parser.add_argument(
        "--end-user-limit",
        type=limit,
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="a limit of each end user of the tenant",
    )
    parser.add_argument(
        "--model-limit",
        type=model_limit,
        action="append",
        default=[],
        metavar="MODEL:NAME=NUMBER",
        help="a limit of the tenant's use of one model",
    )
    parser.add_argument("--weight", type=float, help="share of the workers while tenants wait for them (default: 1)")
    parser.add_argument(
        "--share-prefixes",
        choices=("on", "off"),
        help="share the KV blocks of public prefixes with other tenants that do (default: off)",
    )
    parser.add_argument(
        "--best-class",
        choices=[str(slo_class) for slo_class in SloClass],
        help="the best SLO class of its requests, whatever they ask for (default: interactive, which is the best)",
    )


def _settings(arguments: argparse.Namespace) -> SettingsChange:
    """What the options change."""
    models: dict[str, dict[str, LimitChange]] = {}
    for model, (name, value) in arguments.model_limit:
        models.setdefault(model, {})[name] = value
    return SettingsChange(
        limits=dict(arguments.limit),
        end_user_limits=dict(arguments.end_user_limit),
        model_limits=models,
        weight=arguments.weight,
        share_prefixes=None if arguments.share_prefixes is None else arguments.share_prefixes == "on",
        best_class=None if arguments.best_class is None else SloClass(arguments.best_class),
    )


def _create(arguments: argparse.Namespace) -> int:
    adopted = None
    if arguments.adopt:
        try:
            adopted = typed_tenant()
        except ValueError as error:
            print(f"baton: {error}", file=sys.stderr)
            return 2

    async def work(accounts: AccountStores) -> None:
        settings = _settings(arguments).applied_to(NO_SETTINGS)
        tenant, project = await accounts.tenants.create(
            arguments.name, actor_of(arguments), adopted=adopted, settings=settings
        )
        if arguments.json:
            print_json({"tenant": tenant, "project": project})
        else:
            print(f"Tenant {tenant.id} ({tenant.name}) has the project {project.id} ({project.name}), and no key yet")

    return with_accounts(arguments, work)


def _list(arguments: argparse.Namespace) -> int:
    def columns(tenant: TenantAccount) -> tuple[str, ...]:
        return tenant.id, tenant.name, tenant.status, shown_time(tenant.created_at), shown_limits(tenant.settings)

    async def work(accounts: AccountStores) -> None:
        found = all_of(lambda last: accounts.tenants.page(None if last is None else last.id, PAGE))
        await print_list(arguments, found, columns, ("id", "name", "status", "created", "settings"))

    return with_accounts(arguments, work)


def _suspend(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        tenant = await accounts.tenants.find(arguments.tenant)
        _print_tenant(arguments, await accounts.tenants.suspend(tenant.id, actor_of(arguments)))

    return with_accounts(arguments, work)


def _resume(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        tenant = await accounts.tenants.find(arguments.tenant)
        _print_tenant(arguments, await accounts.tenants.resume(tenant.id, actor_of(arguments)))

    return with_accounts(arguments, work)


def _set(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        tenant = (await accounts.tenants.find(arguments.tenant)).id
        change = TenantChange(name=arguments.name, settings=_settings(arguments))
        _print_tenant(arguments, await accounts.tenants.change(tenant, actor_of(arguments), change))

    return with_accounts(arguments, work)


def _changes(arguments: argparse.Namespace) -> int:
    def columns(change: AccountChange) -> tuple[str, ...]:
        before = "" if change.before is None else f"{shown_limits(change.before)} -> "
        return shown_time(change.at), change.actor, change.action, change.object, before + shown_limits(change.after)

    async def work(accounts: AccountStores) -> None:
        tenant = None if arguments.tenant is None else (await accounts.tenants.find(arguments.tenant)).id
        found = all_of(
            lambda last: accounts.tenants.changes(tenant, None if last is None else last.sequence, PAGE),
            most=arguments.last,
        )
        await print_list(arguments, found, columns, ("at", "by", "action", "object", "change"))

    return with_accounts(arguments, work)


def _print_tenant(arguments: argparse.Namespace, tenant: TenantAccount) -> None:
    if arguments.json:
        print_json(tenant)
    else:
        print(f"Tenant {tenant.id} ({tenant.name}) is {tenant.status}; settings: {shown_limits(tenant.settings)}")

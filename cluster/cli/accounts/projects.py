"""`baton project`: makes, lists and archives projects of tenants, and sets their limits."""

import argparse

from api.identity.settings import NO_LIMITS, with_changes
from api.state.postgres.accounts.account_stores import AccountStores
from api.state.postgres.accounts.rows import Project
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
    with_accounts,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_project = parser.add_subparsers(required=True, metavar="command")
    create = add_command(of_project, "create", "make a project of a tenant", _create)
    create.add_argument("tenant", help="id or name of the tenant")
    create.add_argument("name", help="a name that people read")
    listed = add_command(of_project, "list", "print the projects of a tenant", _list, changes=False)
    listed.add_argument("tenant", help="id or name of the tenant")
    archive = add_command(of_project, "archive", "refuse all requests of a project, for good", _archive)
    changed = add_command(of_project, "set", "change the limits of a project", _set)
    for command in (archive, changed):
        command.add_argument("project", help="id of the project")
    for command in (create, changed):
        add_limits(command)


def _create(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        tenant = await accounts.tenants.find(arguments.tenant)
        limits = with_changes(NO_LIMITS, dict(arguments.limit))
        _print_project(
            arguments, await accounts.projects.create(tenant.id, arguments.name, actor_of(arguments), limits)
        )

    return with_accounts(arguments, work)


def _list(arguments: argparse.Namespace) -> int:
    def columns(project: Project) -> tuple[str, ...]:
        name = f"{project.name} (default)" if project.is_default else project.name
        status = "active" if project.archived_at is None else "archived"
        return project.id, name, status, shown_time(project.created_at), shown_limits(project.limits)

    async def work(accounts: AccountStores) -> None:
        tenant = (await accounts.tenants.find(arguments.tenant)).id
        found = all_of(lambda last: accounts.projects.page(tenant, None if last is None else last.id, PAGE))
        await print_list(arguments, found, columns, ("id", "name", "status", "created", "limits"))

    return with_accounts(arguments, work)


def _archive(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        _print_project(arguments, await accounts.projects.archive(arguments.project, actor_of(arguments)))

    return with_accounts(arguments, work)


def _set(arguments: argparse.Namespace) -> int:
    async def work(accounts: AccountStores) -> None:
        limits = dict(arguments.limit)
        _print_project(arguments, await accounts.projects.change(arguments.project, actor_of(arguments), limits))

    return with_accounts(arguments, work)


def _print_project(arguments: argparse.Namespace, project: Project) -> None:
    if arguments.json:
        print_json(project)
    else:
        status = "active" if project.archived_at is None else "archived"
        print(f"Project {project.id} ({project.name}) is {status}; limits: {shown_limits(project.limits)}")

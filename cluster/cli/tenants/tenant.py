"""`baton tenant`: makes and sets tenants, and erases or seals anew what is stored of one, with or without a running
service.
"""

import argparse
import sys

from api.state.administration import Administration
from cluster.cli.accounts.account_commands import typed_tenant
from cluster.cli.accounts.tenants import add_tenant_commands
from cluster.cli.conf_option import add_conf
from cluster.cli.state import with_administration
from cluster.cli.tenant_overrides import overrides_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Without a sub-command: reads an API key of the time before accounts from standard input, and prints the id of "
        "its tenant."
    )
    parser.set_defaults(run=_name)
    of_tenant = parser.add_subparsers(metavar="command")
    add_tenant_commands(of_tenant)
    erase = of_tenant.add_parser("erase", help="delete all that is stored for a tenant, and destroy its keys")
    erase.add_argument("tenant", help="id of the tenant, as `baton tenant list` prints it")
    erase.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_conf(erase, _erase)
    rotate = of_tenant.add_parser(
        "rotate",
        help="seal everything that is stored for a tenant with a new key (`baton key rotate` replaces an API key)",
    )
    rotate.add_argument("tenant", nargs="?", help="id of the tenant (default: all tenants)")
    add_conf(rotate, _rotate)


def _name(_: argparse.Namespace) -> int:
    """Print the tenant of the API key on standard input, which is of the time before accounts."""
    try:
        print(typed_tenant())
    except ValueError as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    return 0


def _erase(arguments: argparse.Namespace) -> int:
    tenant = arguments.tenant
    if not arguments.yes:
        print(
            f"Everything that is stored for tenant {tenant} will be deleted forever. Type its name to continue: ",
            end="",
        )
        if sys.stdin.readline().strip() != tenant:
            print("baton: the names differ, nothing is erased", file=sys.stderr)
            return 1

    async def work(administration: Administration) -> None:
        erased = await administration.erase(tenant)
        print(f"Tenant {tenant} is erased: " + ", ".join(f"{number} of {place}" for place, number in erased.items()))
        overrides = overrides_file(arguments)
        if overrides is not None and overrides.remove():
            print(f"{overrides.path} is deleted: delete it in other copies of the folder, too")

    return with_administration(arguments, work)


def _rotate(arguments: argparse.Namespace) -> int:
    async def work(administration: Administration) -> None:
        tenants = await administration.tenants() if arguments.tenant is None else [arguments.tenant]
        for tenant in tenants:
            destroyed = await administration.rotate(tenant)
            print(f"Tenant {tenant} has a new key; destroyed versions: {destroyed}")

    return with_administration(arguments, work)

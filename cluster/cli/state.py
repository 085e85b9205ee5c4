"""`baton tenant` and `baton state`: an operator's commands for stored conversations, with or without a
running service.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import yaml

from api.state.administration import Administration
from api.state.encryption.master_keys import master_key
from api.state.encryption.tenant_keys import LocalMasterKey
from api.state.lifecycle import ChatState
from cluster.cli.accounts.account_commands import typed_tenant
from cluster.cli.accounts.tenants import add_tenant_commands
from cluster.cli.conf_option import add_conf, config_of
from cluster.cli.tenant_overrides import overrides_file
from cluster.config.environment import MASTER_KEY_VARIABLE
from cluster.config.state import StateConfig
from cluster.errors import ServingError
from cluster.repository import REPO_ROOT
from cluster.services.failure import ServiceFailed

Work = Callable[[Administration], Awaitable[None]]


def add_tenant_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tenant = commands.add_parser(
        "tenant",
        help="make, list, suspend and set tenants; print the tenant of an old API key; erase what is stored of a "
        "tenant, or seal it with a new key",
        description="Without a sub-command: reads an API key of the time before accounts from standard input, and "
        "prints the id of its tenant.",
    )
    tenant.set_defaults(run=_name)
    of_tenant = tenant.add_subparsers(metavar="command")
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


def add_state_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    state = commands.add_parser("state", help="operate on stored conversations")
    of_state = state.add_subparsers(required=True, metavar="command")
    master = of_state.add_parser(
        "rotate-master-key",
        help="wrap the keys of all tenants with a new master key",
        description="If the master key is in a file, the command makes a new key and keeps the old one until the "
        f"next rotation. If it is in {MASTER_KEY_VARIABLE}, the operator makes the new key: put it in front of the "
        "old key, separated by a comma, in the environment of every ingress and of this command. Remove the old key "
        "when the command is done.",
    )
    add_conf(master, _rotate_master_key)


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

    return _done(arguments, work)


def _rotate(arguments: argparse.Namespace) -> int:
    async def work(administration: Administration) -> None:
        tenants = await administration.tenants() if arguments.tenant is None else [arguments.tenant]
        for tenant in tenants:
            destroyed = await administration.rotate(tenant)
            print(f"Tenant {tenant} has a new key; destroyed versions: {destroyed}")

    return _done(arguments, work)


def _rotate_master_key(arguments: argparse.Namespace) -> int:
    async def work(administration: Administration) -> None:
        print(f"{await administration.rewrap()} keys are wrapped with the new master key")

    def prepare(config: StateConfig) -> None:
        if config.master_key is None and MASTER_KEY_VARIABLE not in os.environ:
            made = master_key(None, REPO_ROOT / config.data_dir)
            assert isinstance(made, LocalMasterKey)
            made.rotate()

    return _done(arguments, work, prepare)


def _done(arguments: argparse.Namespace, work: Work, prepare: Callable[[StateConfig], None] = lambda _: None) -> int:
    try:
        config = config_of(arguments).state
        asyncio.run(_with_state(config, work, prepare))
    except (OSError, ValueError, KeyError, RuntimeError, yaml.YAMLError, ServiceFailed, ServingError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 1
    return 0


async def _with_state(config: StateConfig, work: Work, prepare: Callable[[StateConfig], None]) -> None:
    state = ChatState(config)
    try:
        await state.look()
        await state.look_for_redis()
        prepare(config)
        await work(state.administration(print))
    finally:
        await state.close()

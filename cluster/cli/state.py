"""`baton state`: an operator's commands for all stored conversations, with or without a running service."""

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
from cluster.cli.conf_option import add_conf, config_of
from cluster.config.environment import MASTER_KEY_VARIABLE
from cluster.config.state import StateConfig
from cluster.errors import ServingError
from cluster.repository import REPO_ROOT
from cluster.services.failure import ServiceFailed

Work = Callable[[Administration], Awaitable[None]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_state = parser.add_subparsers(required=True, metavar="command")
    master = of_state.add_parser(
        "rotate-master-key",
        help="wrap the keys of all tenants with a new master key",
        description="If the master key is in a file, the command makes a new key and keeps the old one until the "
        f"next rotation. If it is in {MASTER_KEY_VARIABLE}, the operator makes the new key: put it in front of the "
        "old key, separated by a comma, in the environment of every ingress and of this command. Remove the old key "
        "when the command is done.",
    )
    add_conf(master, _rotate_master_key)


def _rotate_master_key(arguments: argparse.Namespace) -> int:
    async def work(administration: Administration) -> None:
        print(f"{await administration.rewrap()} keys are wrapped with the new master key")

    def prepare(config: StateConfig) -> None:
        if config.master_key is None and MASTER_KEY_VARIABLE not in os.environ:
            made = master_key(None, REPO_ROOT / config.data_dir)
            assert isinstance(made, LocalMasterKey)
            made.rotate()

    return with_administration(arguments, work, prepare)


def with_administration(
    arguments: argparse.Namespace, work: Work, prepare: Callable[[StateConfig], None] = lambda _: None
) -> int:
    """Run the work of a command. `prepare`: called before it, when the stores are reached. Returns its status."""
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

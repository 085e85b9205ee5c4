"""What all account commands share: their options, how they reach the accounts, and how they print."""

import argparse
import asyncio
import getpass
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import yaml

from api.identity.keys import PREFIX
from api.identity.tenants import tenant_of_key
from api.state.lifecycle import ChatState
from api.state.postgres.accounts.account_stores import AccountStores
from api.wire.pages import Part
from cluster.cli.accounts.values import limit
from cluster.cli.conf_option import add_conf, config_of
from cluster.config.state import StateConfig
from cluster.config.tenants.limits import refusal_without_prices
from cluster.errors import ServingError
from cluster.services.failure import ServiceFailed

PAGE = 200
"""Entries of a list that are read in one transaction. More is faster; fewer takes less memory."""
LIMITS = (
    "requests_per_minute, tokens_per_minute, concurrent_requests, tokens_per_day, tokens_per_month, cost_per_day, "
    "cost_per_month (costs in millionths of the currency)"
)

T = TypeVar("T", bound=msgspec.Struct)
Work = Callable[[AccountStores], Awaitable[None]]


def add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    run: Callable[[argparse.Namespace], int],
    *,
    changes: bool = True,
) -> argparse.ArgumentParser:
    """A command with the options that all have. `changes`: whether it changes something."""
    parser = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    parser.add_argument("--json", action="store_true", help="print JSON, a line for each object")
    if changes:
        parser.add_argument("--as", dest="actor", metavar="NAME", help="who makes the change, for the log of changes")
    add_conf(parser, run)
    return parser


def add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        type=limit,
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help=f"a limit, NAME=none for no limit, or NAME=default; can be repeated. Names: {LIMITS}",
    )


def actor_of(arguments: argparse.Namespace) -> str:
    """Who makes a change. Without --as, the user who runs the command."""
    return str(arguments.actor or getpass.getuser())


def typed_tenant() -> str:
    """The id of the tenant of the key on standard input, which is of the time before accounts. Raises ValueError."""
    key = sys.stdin.readline().strip()
    if not key:
        raise ValueError("there is no API key on standard input")
    if key.startswith(PREFIX):
        raise ValueError("this API key is of an account: `baton key list TENANT` shows the keys of a tenant")
    return tenant_of_key(key)


def with_accounts(arguments: argparse.Namespace, work: Work) -> int:
    """Run the work of a command. Returns its status."""
    try:
        config = config_of(arguments)
        if config.metering.prices is None:
            _check_limits(arguments)
        asyncio.run(_run(config.state, work))
    except (OSError, ValueError, LookupError, RuntimeError, yaml.YAMLError, ServiceFailed, ServingError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 1
    return 0


def _check_limits(arguments: argparse.Namespace) -> None:
    """The limits in the options of a command whose config has no prices. Raises ValueError."""
    options = vars(arguments)
    given = [*options.get("limit", ()), *options.get("end_user_limit", ())]
    given += [limit for _, limit in options.get("model_limit", ())]
    for name, value in given:
        if why := refusal_without_prices({name: value}):
            raise ValueError(why)


async def _run(config: StateConfig, work: Work) -> None:
    state = ChatState(config)
    try:
        await state.look()
        await work(state.accounts())
    finally:
        await state.close()


async def all_of(page: Callable[[T | None], Awaitable[Part[T]]], most: float = math.inf) -> AsyncIterator[T]:
    """The entries of a list, page by page, and `most` of them. `page`: the page after an entry."""
    last: T | None = None
    number = 0
    while True:
        part = await page(last)
        for last in part.data:
            if number >= most:
                return
            number += 1
            yield last
        if not part.has_more:
            return


def print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


async def print_list(
    arguments: argparse.Namespace, entries: AsyncIterator[T], columns: Callable[[T], Sequence[str]], head: Sequence[str]
) -> None:
    """Print a list as JSON lines, or as a table."""
    if arguments.json:
        async for entry in entries:
            print_json(entry)
        return
    rows = [head, *[columns(entry) async for entry in entries]]
    for line in table(rows):
        print(line)


def table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def shown_limits(limits: Any) -> str:
    """Limits or settings as a table shows them."""
    return msgspec.json.encode(limits).decode().replace('"', "") if limits else "-"


def shown_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S%z")

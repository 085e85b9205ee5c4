"""`baton usage`: what tenants have used, and what it costs, from the ledger."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import yaml

from api.state.lifecycle import ChatState
from api.state.postgres.database import EVERY_TENANT
from api.wire.organization.usage import MICROS, WIDTHS, Sums, UsageQuery, split
from cluster.cli.conf_option import add_conf, config_of
from cluster.config.state import StateConfig
from cluster.errors import NotFound, ServingError
from cluster.services.failure import ServiceFailed

COLUMNS = {"tenant": "tenant_id", "project": "project_id", "key": "api_key_id", "user": "user_id", "model": "model"}
"""What the command groups by, beside days, and the columns that have it."""
BY = ("day", *COLUMNS)
MAX_DAYS = 3660
"""Days of one call. More makes larger sums, which PostgreSQL ends after 5 s."""
MAX_LINES = 1_000_000
"""Lines of one call. More takes memory, about 1 kB each, and a sum over the ledger for each 10,000; fewer refuses
services with many end users.
"""
NUMBERS = ("requests", "lost", "prompt", "cached", "generated", "reasoning", "cost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sums the ledger of usage up, with or without a running service. Days are those of UTC, and today "
        "is one of them. `lost` counts requests whose ingress died: nothing else is known of them, and they cost "
        "nothing."
    )
    parser.add_argument("--days", type=_days, default=7, help="days, with today (default: %(default)s)")
    parser.add_argument(
        "--by",
        type=_groups,
        default=("tenant", "model"),
        help=f"comma-separated: {','.join(BY)} (default: tenant,model)",
    )
    parser.add_argument("--tenant", help="id or name of a tenant (default: all tenants)")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each line")
    add_conf(parser, _run)


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_DAYS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 1 to {MAX_DAYS}")
    return int(text)


def _groups(text: str) -> tuple[str, ...]:
    groups = tuple(dict.fromkeys(text.split(",")))
    if wrong := [group for group in groups if group not in BY]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(BY)}")
    return groups


def _run(arguments: argparse.Namespace) -> int:
    query = query_of(arguments.days, arguments.by, time.time())
    try:
        sums = asyncio.run(_sums(config_of(arguments).state, arguments.tenant, query))
    except (OSError, ValueError, LookupError, RuntimeError, yaml.YAMLError, ServiceFailed, ServingError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 1
    if len(sums) > MAX_LINES:
        print(
            f"baton: more than {MAX_LINES} lines: ask for fewer days, group by less, or name one tenant (--tenant)",
            file=sys.stderr,
        )
        return 1
    lines = [line_of(one, arguments.by) for one in sums]
    if arguments.json:
        for line in lines:
            print(json.dumps(line))
    else:
        print(table(lines, arguments.by))
    return 0


async def _sums(config: StateConfig, tenant: str | None, query: UsageQuery) -> list[Sums]:
    """`tenant`: its id or its name; None for all tenants. Raises NotFound for one without an account and usage."""
    state = ChatState(config)
    try:
        await state.look()
        if tenant is None:
            return await _all_pages(state, EVERY_TENANT, query)
        try:
            return await _all_pages(state, (await state.accounts().tenants.find(tenant)).id, query)
        except NotFound:
            # Where requests need no key, a tenant may have usage and no account
            if sums := await _all_pages(state, tenant, query):
                return sums
            raise
    finally:
        await state.close()


async def _all_pages(state: ChatState, tenant: str, query: UsageQuery) -> list[Sums]:
    sums: list[Sums] = []
    left: UsageQuery | None = query
    while left is not None and len(sums) <= MAX_LINES:
        on_page, left = split(left, await state.stores.usage.sums(tenant, left.on_page()))
        sums += on_page
    return sums


def query_of(days: int, by: Sequence[str], now: float) -> UsageQuery:
    """The sums of so many days, by these groups and by currency. `now`: Unix time."""
    day_s = WIDTHS["1d"]
    end = (int(now) // day_s + 1) * day_s
    start = end - days * day_s
    columns = tuple(COLUMNS[group] for group in by if group in COLUMNS)
    if "day" in by:
        return UsageQuery(start, end, day_s, days, (*columns, "currency"))
    # One bucket for all days: buckets are multiples of their width
    return UsageQuery(start, end, 1 << 40, 1, (*columns, "currency"))


def line_of(one: Sums, by: Sequence[str]) -> dict[str, str | int | float | None]:
    """A line of the table."""
    groups = {
        group: datetime.fromtimestamp(one.bucket, UTC).date().isoformat()
        if group == "day"
        else getattr(one, COLUMNS[group])
        for group in by
    }
    return groups | {
        "requests": one.requests,
        "lost": one.lost,
        "prompt": one.prompt_tokens,
        "cached": one.cached_tokens,
        "generated": one.generated_tokens,
        "reasoning": one.reasoning_tokens,
        "cost": one.cost_micros / MICROS,
        "currency": one.currency or None,
    }


def table(lines: Sequence[dict[str, str | int | float | None]], by: Sequence[str]) -> str:
    """For a terminal."""
    header = [*by, *NUMBERS, "currency"]
    rows = [header, *([_cell(name, line[name]) for name in header] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if name in NUMBERS else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def _cell(name: str, value: str | int | float | None) -> str:
    if name == "cost":
        return f"{value:.6f}"
    return "-" if value in (None, "") else str(value)

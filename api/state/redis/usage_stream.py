"""The stream of Redis that has the newest rows of the ledger, for subscribers outside of Baton."""

from typing import Any

import msgspec

from api.state.redis.client import Command, RedisClient
from cluster.errors import StateUnavailable

STREAM = "baton:usage"
"""The name of the stream. An entry has one row as JSON, in its field `row`."""
READ_AT_ONCE = 200
"""Entries that one command reads. More makes fewer commands; fewer blocks Redis for less time."""


class _Row(msgspec.Struct):
    tenant_id: str
    end_user: str


async def forget_end_users(redis: RedisClient, tenant: str) -> int:
    """Put the rows of a tenant that name an end user into the stream again, without the name, and delete the old ones.
    Returns their number. Raises StateUnavailable while Redis is away.
    """
    number, after = 0, "-"
    while entries := (await _asked(redis, ("XRANGE", STREAM, after, "+", "COUNT", READ_AT_ONCE)))[0]:
        commands: list[Command] = []
        for entry, fields in entries:
            text = fields[b"row"]
            row = msgspec.json.decode(text, type=_Row)
            if row.tenant_id == tenant and row.end_user:
                nameless = msgspec.json.encode(msgspec.json.decode(text) | {"end_user": ""})
                commands += [("XADD", STREAM, "*", "row", nameless), ("XDEL", STREAM, entry)]
        if commands:
            await _asked(redis, *commands)
            number += len(commands) // 2
        after = f"({entries[-1][0].decode()}"
    return number


async def _asked(redis: RedisClient, *commands: Command) -> list[Any]:
    answers = await redis.run(*commands)
    if answers is None:
        raise StateUnavailable("Redis is away, and may have names of the tenant's end users", 1.0)
    return answers

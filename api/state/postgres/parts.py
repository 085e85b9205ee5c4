"""Pages of lists as PostgreSQL gives them: they end by number and by size, and go on where they ended."""

import re
from typing import Generic, NamedTuple, TypeVar

from psycopg.rows import DictRow

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.stores.items import Item, unsealed
from api.wire.pages import Page, Part
from cluster.errors import InvalidRequest

T = TypeVar("T")

PAGE_BYTES = 8 << 20
"""Sealed, of a page, but for a single entry. More takes the ingress more memory and time at once; less makes clients
ask more often for what is large.
"""
_CURSOR = re.compile(r"(conv_[0-9a-f]{32})\.([0-9a-z.+-]{1,40})")


class FoundPart(NamedTuple, Generic[T]):
    part: Part[T]
    cursor: str | None
    """Where the next page begins, if there are entries."""


def cursor_to(entry: str, place: str) -> str:
    """`place`: of the entry in the list, as it is now. Lists whose entries move go on from there, wherever the entry is
    by then.
    """
    return f"{entry}.{place}"


def place_in(page: Page) -> tuple[str | None, str | None]:
    """The entry after which a page begins, and its place where that is told."""
    if page.after is None or (found := _CURSOR.fullmatch(page.after)) is None:
        return page.after, None
    return found[1], found[2]


def no_cursor() -> InvalidRequest:
    return InvalidRequest("after must be the last_id of the page before", "after", "invalid_value")


def part_of_rows(rows: list[DictRow], limit: int) -> tuple[list[DictRow], bool]:
    """Of no more rows than the page takes, and whether there are more. `rows`: as many as fit by their size, each with
    the `number` that there are, up to one more than the limit.
    """
    shown = rows[:limit]
    return shown, bool(rows) and rows[0]["number"] > len(shown)


async def items_in(page: Page, keys: dict[int, TenantKey], rows: list[DictRow]) -> Part[Item]:
    """`keys`: of the rows, which are as above."""
    shown, has_more = part_of_rows(rows, page.limit)
    return Part(await unsealed(keys, shown), has_more)

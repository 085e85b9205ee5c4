"""Pages of lists: a page ends at a number of entries or at a size, and a cursor marks where the next page begins."""

import re
from typing import Generic, NamedTuple, TypeVar

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.database import Row
from api.state.postgres.stores.items import Item, unsealed
from api.wire.pages import Page, Part
from cluster.errors import InvalidRequest

T = TypeVar("T")

PAGE_BYTES = 8 << 20
"""Sealed bytes of a page, unless a single entry is larger. More takes the ingress more memory and time at once; less
makes clients fetch more pages.
"""
_CURSOR = re.compile(r"(conv_[0-9a-f]{32})\.([0-9a-z.+-]{1,40})")


class FoundPart(NamedTuple, Generic[T]):
    """A page of a list whose entries can move."""

    part: Part[T]
    cursor: str | None
    """The cursor of the next page. None for an empty page."""


def cursor_to(entry: str, place: str) -> str:
    """The cursor of the page after this entry. `place`: where the entry is in the list now. The next page begins at
    that place even if the entry has moved meanwhile.
    """
    return f"{entry}.{place}"


def place_in(page: Page) -> tuple[str | None, str | None]:
    """The entry after which a page begins, and its place if the client has sent a cursor."""
    if page.after is None or (found := _CURSOR.fullmatch(page.after)) is None:
        return page.after, None
    return found[1], found[2]


def no_cursor() -> InvalidRequest:
    return InvalidRequest("after must be the last_id of the previous page", "after", "invalid_value")


def part_of_rows(rows: list[Row], limit: int) -> tuple[list[Row], bool]:
    """The rows of a page, and whether the list has more. `rows`: the rows that fit by size. The `number` of each row
    counts all rows from the beginning of the page, up to one more than the limit.
    """
    shown = rows[:limit]
    return shown, bool(rows) and rows[0]["number"] > len(shown)


async def items_in(page: Page, keys: dict[int, TenantKey], rows: list[Row]) -> Part[Item]:
    """A page of items. `keys`: the keys of the rows, by version. `rows`: as in `part_of_rows`."""
    shown, has_more = part_of_rows(rows, page.limit)
    return Part(await unsealed(keys, shown), has_more)

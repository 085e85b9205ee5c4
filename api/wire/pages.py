"""Lists in pages: OpenAI's query parameters and envelope. The module also checks `metadata` and `user`, by which lists
are filtered, and the title of a conversation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from cluster.errors import InvalidRequest, NotFound

T = TypeVar("T")

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
"""Entries of a page if a client names no `limit`, and the largest `limit`, as OpenAI has them. Lower values cost
a client more requests for a list; higher values make larger answers, which PostgreSQL and the ingress hold in memory.
"""
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Pairs of one `metadata` object, characters of a key, and characters of a value, as OpenAI limits them."""
MAX_USER = 512
"""Characters of `user`, the name that a client gives to its own end user. Lower values refuse longer names; higher
values store more with each object.
"""
MAX_TITLE = 200
"""Characters of the title of a conversation. Lower values refuse longer titles; higher values make lists larger."""

_FILTER = "metadata["


class Page(NamedTuple):
    """The part of a list that a client asks for."""

    after: str | None
    """The last id of the previous page. None for the first page."""
    limit: int
    newest_first: bool


class Part(NamedTuple, Generic[T]):
    """The entries of a list that one page shows."""

    data: list[T]
    has_more: bool
    """True if the list has entries behind these. A page of large entries may end before its limit."""


def page_of(query: Mapping[str, str], default_order: str = "desc") -> Page:
    """The page that a query string asks for. Raises InvalidRequest for a wrong `limit` or `order`."""
    limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", default_order)
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MAX_LIMIT):
        raise InvalidRequest(f"limit must be a number from 1 to {MAX_LIMIT}", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", "order", "invalid_value")
    return Page(query.get("after") or None, int(limit), order == "desc")


def part_of(data: Sequence[dict[str, Any]], page: Page) -> Part[dict[str, Any]]:
    """One page of `data`, which is a complete list in the order from the oldest entry to the newest.

    Raises NotFound if the list has no entry with the id that the page follows.
    """
    if page.newest_first:
        data = data[::-1]
    first = 0
    if page.after is not None:
        ids = [one["id"] for one in data]
        if page.after not in ids:
            raise NotFound(f"this list has no entry with the id '{page.after}'", "after", "not_found")
        first = ids.index(page.after) + 1
    return Part(list(data[first : first + page.limit]), len(data) > first + page.limit)


def listed(part: Part[dict[str, Any]], cursor: str | None = None) -> dict[str, Any]:
    """OpenAI's envelope of a page. `cursor` is the value of `after` for the next page if it is not the last id."""
    data = part.data
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": cursor or (data[-1]["id"] if data else None),
        "has_more": part.has_more,
    }


def metadata_in(query: Mapping[str, str]) -> dict[str, str]:
    """The metadata that a query string filters by, as `metadata[key]=value`. Raises InvalidRequest."""
    return metadata_of(
        {
            name.removeprefix(_FILTER).removesuffix("]"): value
            for name, value in query.items()
            if name.startswith(_FILTER) and name.endswith("]")
        }
    )


def metadata_of(value: Any) -> dict[str, str]:
    """The `metadata` of a request body, and an empty one for null. Raises InvalidRequest."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in (*value, *value.values())):
        raise InvalidRequest("metadata must be an object of strings", "metadata", "invalid_type")
    if len(value) > MAX_METADATA:
        raise InvalidRequest(
            f"metadata may have at most {MAX_METADATA} keys", "metadata", "object_above_max_properties"
        )
    if any("\0" in text for text in (*value, *value.values())):
        raise InvalidRequest("metadata has NUL characters, which cannot be stored", "metadata", "invalid_value")
    for key, text in value.items():
        if len(key) > MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE:
            raise InvalidRequest(
                f"keys of metadata may have at most {MAX_METADATA_KEY} characters, and values {MAX_METADATA_VALUE}",
                f"metadata.{key[:MAX_METADATA_KEY]}",
                "string_above_max_length",
            )
    return dict(value)


def user_of(value: Any) -> str | None:
    """The `user` of a request body. Raises InvalidRequest."""
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_USER):
        raise InvalidRequest(f"user must be a string of at most {MAX_USER} characters", "user", "invalid_value")
    if value is not None and "\0" in value:
        raise InvalidRequest("user has NUL characters, which cannot be stored", "user", "invalid_value")
    return value


def title_of(value: Any) -> str:
    """The `title` of a request body, and an empty title for null. Raises InvalidRequest."""
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_TITLE):
        raise InvalidRequest(f"title must be a string of at most {MAX_TITLE} characters", "title", "invalid_value")
    return value or ""

"""Lists, a page at a time: OpenAI's query parameters and envelope."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from cluster.errors import InvalidRequest, NotFound

T = TypeVar("T")

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Pairs, and characters."""
MAX_USER = 512
MAX_TITLE = 200
"""Characters."""


_FILTER = "metadata["


class Page(NamedTuple):
    """That is asked for."""

    after: str | None
    """The last id of the page before."""
    limit: int
    newest_first: bool


class Part(NamedTuple, Generic[T]):
    """Of a list: what a page shows of it."""

    data: list[T]
    has_more: bool
    """Behind it. Where the data are large, a page ends before its limit."""


def page_of(query: Mapping[str, str], default_order: str = "desc") -> Page:
    """Raises InvalidRequest."""
    limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", default_order)
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MAX_LIMIT):
        raise InvalidRequest(f"limit must be a number from 1 to {MAX_LIMIT}", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", "order", "invalid_value")
    return Page(query.get("after") or None, int(limit), order == "desc")


def part_of(data: Sequence[dict[str, Any]], page: Page) -> Part[dict[str, Any]]:
    """Of all, the oldest first. Raises NotFound."""
    if page.newest_first:
        data = data[::-1]
    first = 0
    if page.after is not None:
        ids = [one["id"] for one in data]
        if page.after not in ids:
            raise NotFound(f"nothing with id '{page.after}' is listed here", "after", "not_found")
        first = ids.index(page.after) + 1
    return Part(list(data[first : first + page.limit]), len(data) > first + page.limit)


def listed(part: Part[dict[str, Any]], cursor: str | None = None) -> dict[str, Any]:
    """`cursor`: what the next page is asked for by, where that is not the last id."""
    data = part.data
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": cursor or (data[-1]["id"] if data else None),
        "has_more": part.has_more,
    }


def metadata_in(query: Mapping[str, str]) -> dict[str, str]:
    """That is asked for by `metadata[key]=value`. Raises InvalidRequest."""
    return metadata_of(
        {
            name.removeprefix(_FILTER).removesuffix("]"): value
            for name, value in query.items()
            if name.startswith(_FILTER) and name.endswith("]")
        }
    )


def metadata_of(value: Any) -> dict[str, str]:
    """Raises InvalidRequest."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in (*value, *value.values())):
        raise InvalidRequest("metadata must be an object of strings", "metadata", "invalid_type")
    if len(value) > MAX_METADATA:
        raise InvalidRequest(f"metadata may have {MAX_METADATA} keys", "metadata", "object_above_max_properties")
    if any("\0" in text for text in (*value, *value.values())):
        raise InvalidRequest("metadata has NUL characters, which cannot be stored", "metadata", "invalid_value")
    for key, text in value.items():
        if len(key) > MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE:
            raise InvalidRequest(
                f"keys of metadata may have {MAX_METADATA_KEY} characters, and values {MAX_METADATA_VALUE}",
                f"metadata.{key[:MAX_METADATA_KEY]}",
                "string_above_max_length",
            )
    return dict(value)


def user_of(value: Any) -> str | None:
    """Raises InvalidRequest."""
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_USER):
        raise InvalidRequest(f"user must be a string of at most {MAX_USER} characters", "user", "invalid_value")
    if value is not None and "\0" in value:
        raise InvalidRequest("user has NUL characters, which cannot be stored", "user", "invalid_value")
    return value


def title_of(value: Any) -> str:
    """Empty for none. Raises InvalidRequest."""
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_TITLE):
        raise InvalidRequest(f"title must be a string of at most {MAX_TITLE} characters", "title", "invalid_value")
    return value or ""

"""Lists, a page at a time: OpenAI's query parameters and envelope."""

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import QueryParams

from api.state.conversations import Page
from cluster.errors import InvalidRequest, NotFound

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Pairs, and characters."""
MAX_USER = 512
MAX_TITLE = 200
"""Characters."""


_FILTER = "metadata["


def page_of(query: QueryParams, default_order: str = "desc") -> Page:
    """Raises InvalidRequest."""
    limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", default_order)
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MAX_LIMIT):
        raise InvalidRequest(f"limit must be a number from 1 to {MAX_LIMIT}", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", "order", "invalid_value")
    return Page(query.get("after") or None, int(limit), order == "desc")


def part_of(data: Sequence[dict[str, Any]], page: Page) -> Sequence[dict[str, Any]]:
    """Of all, the oldest first: the page, and one more where there are more. Raises NotFound."""
    if page.newest_first:
        data = data[::-1]
    first = 0
    if page.after is not None:
        ids = [one["id"] for one in data]
        if page.after not in ids:
            raise NotFound(f"nothing with id '{page.after}' is listed here", "after", "not_found")
        first = ids.index(page.after) + 1
    return data[first : first + page.limit + 1]


def listed(data: Sequence[dict[str, Any]], page: Page) -> dict[str, Any]:
    """`data`: one more than the page takes, where there are more."""
    shown = list(data[: page.limit])
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(data) > page.limit,
    }


def metadata_in(query: QueryParams) -> dict[str, str]:
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
    return value


def title_of(value: Any) -> str:
    """Empty for none. Raises InvalidRequest."""
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_TITLE):
        raise InvalidRequest(f"title must be a string of at most {MAX_TITLE} characters", "title", "invalid_value")
    return value or ""

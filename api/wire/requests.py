"""The JSON of a request's body, as every route reads it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi import Request

from api.wire.limits.bounds import check_bounds
from api.wire.limits.depth import check_depths
from api.wire.limits.structure import check_structure
from cluster.errors import InvalidRequest

T = TypeVar("T")

LARGE_BYTES, LARGE_ITEMS = 256 << 10, 500
"""A body or an input with more takes long to check."""
MANY_VALUES = 20_000
"""A body with more does too: decoding them takes a millisecond, walking them some ten."""

BODY = "baton.body"
"""Where the scope of a request has its body, which the edge (api/edge/edge.py) has read."""

_CHECKING = ThreadPoolExecutor(1, "baton-checking")
"""One thread: what is checked holds the interpreter, and several threads would leave the event loop its turn less
often.
"""


class ReadBody(Protocol):
    def take(self) -> bytes:
        """Once: what is read need not be kept beside what is made of it."""
        ...

    def add_values(self, number: int) -> None:
        """So many JSON values are made of it. Raises Overloaded where there is no memory for them."""
        ...


async def json_of(request: Request) -> Any:
    """Bounded in shape and depth. Raises InvalidRequest, Overloaded."""
    body: ReadBody = request.scope[BODY]
    text = body.take()
    if len(text) <= LARGE_BYTES:
        counts = check_structure(text)
        request.state.is_large = counts.values > MANY_VALUES
    else:
        counts = await in_checking_thread(lambda: check_structure(text))
        request.state.is_large = True
    body.add_values(counts.values)
    return await in_checking_thread(lambda: decoded(text)) if request.state.is_large else decoded(text)


def decoded(text: bytes) -> Any:
    """Raises InvalidRequest."""
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}", None, "invalid_json") from error
    check_depths(body)
    check_bounds(body)
    return body


async def object_of(request: Request, known: frozenset[str]) -> dict[str, Any]:
    """A body with these fields alone; none at all counts as an empty one. Raises InvalidRequest."""
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    body = await json_of(request) if has_body else {}
    if not isinstance(body, dict):
        raise InvalidRequest("the request body must be a JSON object", None, "invalid_type")
    if unknown := sorted(body.keys() - known):
        raise InvalidRequest(f"unknown parameter: {unknown[0]}", unknown[0], "unknown_parameter")
    return body


async def checked(request: Request, items: Any, check: Callable[[], T]) -> T:
    """What `check` makes of a body that has been read, and these items; in a thread where that takes long."""
    is_large = getattr(request.state, "is_large", False) or (isinstance(items, list) and len(items) > LARGE_ITEMS)
    return await in_checking_thread(check) if is_large else check()


async def in_checking_thread(check: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_CHECKING, check)

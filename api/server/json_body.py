"""The JSON value of a request body, as routes read it. A large body is decoded in a thread. The body of a message on a
WebSocket is read in the same way (api/edge/socket.py).

The size of a body in bytes is bounded where it is received (api/edge/request_body.py), and the shape of its JSON by
api/wire/limits/.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi.requests import HTTPConnection

from api.edge.request_body import BODY, Body
from api.frontend.checking_thread import in_checking_thread
from api.wire.limits.structure import check_structure
from api.wire.request_json import decoded
from cluster.errors import InvalidRequest

T = TypeVar("T")

LARGE_BYTES, LARGE_ITEMS = 256 << 10, 500
"""Bytes of a body, and entries of a list in it, above which the body is decoded or checked in a thread. Lower values
cost small requests a switch of threads; higher values hold up the event loop for longer.
"""
MANY_VALUES = 20_000
"""JSON values in a body above which the body is decoded and checked in a thread, whatever its size in bytes. Decoding
20,000 values takes 1 ms, and walking them about 10 ms. A lower value costs small requests a switch of threads; a higher
value holds up the event loop for longer.
"""


async def json_of(request: HTTPConnection) -> Any:
    """The JSON value of a request's body, bounded in shape and depth. Each body can be read once.

    Raises InvalidRequest, and Overloaded if the bodies of this replica leave too little memory for the value.
    """
    body: Body = request.scope[BODY]
    text = body.take()
    if len(text) <= LARGE_BYTES:
        counts = check_structure(text)
        request.state.is_large = counts.values > MANY_VALUES
    else:
        counts = await in_checking_thread(lambda: check_structure(text))
        request.state.is_large = True
    body.add_values(counts.values)
    return await in_checking_thread(lambda: decoded(text)) if request.state.is_large else decoded(text)


async def object_of(request: HTTPConnection, known: frozenset[str]) -> dict[str, Any]:
    """The JSON object that a request has as its body. A request without a body counts as one with an empty object.

    Raises InvalidRequest for a body that is not an object, and for a field that is not in `known`.
    """
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    return object_with(await json_of(request) if has_body else {}, known)


def object_with(body: Any, known: frozenset[str]) -> dict[str, Any]:
    """The body, which must be a JSON object with no other fields than `known`. Raises InvalidRequest."""
    if not isinstance(body, dict):
        raise InvalidRequest("the request body must be a JSON object", None, "invalid_type")
    if unknown := sorted(body.keys() - known):
        raise InvalidRequest(f"unknown parameter: {unknown[0]}", unknown[0], "unknown_parameter")
    return body


async def checked(request: HTTPConnection, items: Any, check: Callable[[], T]) -> T:
    """The result of `check`, which validates a body that `json_of` has read, or the list `items` of that body. A large
    body, or a long list, is checked in a thread.
    """
    is_large = getattr(request.state, "is_large", False) or (isinstance(items, list) and len(items) > LARGE_ITEMS)
    return await in_checking_thread(check) if is_large else check()

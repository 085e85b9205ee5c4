"""Requests that generate nothing and cost work all the same: they draw on the limits of requests.

Requests that generate are counted by their charge (api/charging/charge.py), once what they may use is known.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fastapi.requests import HTTPConnection

from api.edge.exchange import EXCHANGE
from api.identity.tenants import principal_of
from api.routes.services import services_of

P = ParamSpec("P")
T = TypeVar("T")
_IS_COUNTED = "is_counted"


@asynccontextmanager
async def counting(request: HTTPConnection) -> AsyncIterator[None]:
    """Count a request for the limits of its sender while the block runs, whatever becomes of it.

    Raises:
        RateLimited: a limit has no room.
        LimitsUnavailable: what is left of a limit is not known now.
    """
    charging = services_of(request).charging
    if charging is None:
        yield
        return
    async with charging.counted(principal_of(request), request.scope[EXCHANGE].add_headers):
        yield


def counted(route: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A route each of whose requests counts. It stands below `needs`, so that no request counts that may not come."""

    @wraps(route)
    async def counted_route(*args: P.args, **kwargs: P.kwargs) -> T:
        request: Any = kwargs["request"] if "request" in kwargs else args[0]
        async with counting(request):
            return await route(*args, **kwargs)

    setattr(counted_route, _IS_COUNTED, True)
    return counted_route


def is_counted(route: Callable[..., Any]) -> bool:
    """Whether each request of a route counts by `counted`."""
    return getattr(route, _IS_COUNTED, False)

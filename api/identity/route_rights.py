"""The rights that a route needs, checked before the route runs.

A route names them where it is declared, below its path. FastAPI's dependencies would do the same, and would be resolved
anew for each request.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from api.identity.rights import Right
from api.identity.tenants import principal_of

P = ParamSpec("P")
T = TypeVar("T")
_NEEDED = "needed_rights"


def needs(*rights: Right) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """A route that a credential needs all of these rights for. The route raises Forbidden without them."""

    def needing(route: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(route)
        async def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            principal = principal_of(
                kwargs["request"] if "request" in kwargs else args[0]
            )  # FastAPI's, and Starlette's
            for right in rights:
                principal.require(right)
            return await route(*args, **kwargs)

        setattr(checked, _NEEDED, rights)
        return checked

    return needing


def needed_by(route: Callable[..., Any]) -> tuple[Right, ...]:
    """The rights that a route needs. None of them for a route that has named none."""
    rights: tuple[Right, ...] = getattr(route, _NEEDED, ())
    return rights

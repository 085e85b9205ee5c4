"""What the routes of the admin API read of a request: its body, its page, and who makes a change."""

import re
from typing import Literal, TypeVar

import msgspec
from fastapi import Request
from msgspec import UNSET

from api.identity.settings import LimitChange, check_name
from api.routes.services import services_of
from api.server.json_body import object_of
from api.state.lifecycle import ChatState
from api.state.postgres.accounts.account_stores import AccountStores
from api.wire.pages import Page, page_of
from cluster.config.tenants.limits import refusal_without_prices
from cluster.errors import InvalidRequest

AS_HEADER = "x-baton-admin-as"
"""Who makes a change, for the log of changes. The admin key says only that the sender is an operator."""
ACTOR = "admin-api"
"""Who makes a change if the request does not say."""
DEFAULT = "default"
"""The value of a limit that goes back to the default of the config."""

LimitsBody = dict[str, int | Literal["default"] | None]
"""Limits by name: a number, null for no limit, or `default`. Limits that are not named stay."""

B = TypeVar("B", bound=msgspec.Struct)

_FIELD = re.compile(r"`\$?\.?([\w.]+)[^`]*`\Z")


async def body_of(request: Request, kind: type[B]) -> B:
    """The body of a request, strictly. Raises InvalidRequest, also for a field that `kind` does not have."""
    body = await object_of(request, frozenset(kind.__struct_fields__))
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        named = _FIELD.search(str(error))
        is_missing = "missing required" in str(error)
        raise InvalidRequest(
            str(error),
            None if named is None else named[1],
            "missing_required_parameter" if is_missing else "invalid_type",
        ) from error


def limit_changes(request: Request, limits: LimitsBody) -> dict[str, LimitChange]:
    """Raises InvalidRequest for a limit of cost where nothing has a price."""
    charging = services_of(request).charging
    if charging is not None and not charging.has_prices and (why := refusal_without_prices(limits)):
        raise InvalidRequest(why, "limits", "invalid_value")
    return {name: UNSET if value == DEFAULT else value for name, value in limits.items()}  # type: ignore[misc]  # a text is DEFAULT


def page_in_order(request: Request, order: str) -> Page:
    """The page of a list that has one order, `asc` or `desc`. Raises InvalidRequest."""
    if request.query_params.get("order", order) != order:
        raise InvalidRequest(
            f"this list has the order {order} alone: leave the parameter out", "order", "invalid_value"
        )
    return page_of(request.query_params, order)


def actor_of(request: Request) -> str:
    """Who makes a change, for the log of changes. Raises InvalidRequest."""
    given = request.headers.getlist(AS_HEADER)
    if not given:
        return ACTOR
    if len(given) > 1:
        raise InvalidRequest(f"the header {AS_HEADER} may be sent only once", AS_HEADER, "repeated_header")
    try:
        name = given[0].encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the header {AS_HEADER} must be UTF-8", AS_HEADER, "invalid_value") from error
    return check_name(name, AS_HEADER)


def accounts_of(request: Request) -> AccountStores:
    """Raises StateUnavailable."""
    state: ChatState = services_of(request).chat_state
    return state.accounts()


async def tenant_named(request: Request, tenant: str) -> str:
    """The id of a tenant that a path names by its id or its name. Raises NotFound, StateUnavailable."""
    return (await accounts_of(request).tenants.find(tenant)).id

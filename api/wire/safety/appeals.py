"""The body of POST /v1/safety/appeals, and the filters of its lists. The route is api/routes/stored/safety.py."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cluster.errors import InvalidRequest

KNOWN = frozenset({"event_id", "reason"})
FILTERS = ("action", "direction", "category", "request_id")
"""Query parameters of a list of safety events."""
MAX_FILTER = 256
"""Characters of a filter, as many as the longest value that is stored. More looks for what cannot be there."""


class AppealAsked(NamedTuple):
    event: str
    reason: str


def appeal_of(body: Mapping[str, Any]) -> AppealAsked:
    """The appeal in a body whose fields are all in KNOWN. Raises InvalidRequest."""
    for name in sorted(KNOWN):
        value = body.get(name)
        if not isinstance(value, str) or not value.strip():
            code = "missing_required_parameter" if value is None else "invalid_type"
            raise InvalidRequest(f"{name} must be a text", name, code)
    return AppealAsked(body["event_id"], body["reason"])


def filters_of(query: Mapping[str, str]) -> dict[str, str]:
    """The filters in a query string. Raises InvalidRequest."""
    found = {name: query[name] for name in FILTERS if name in query}
    for name, value in found.items():
        if not 0 < len(value) <= MAX_FILTER or "\0" in value:
            raise InvalidRequest(f"{name} must have 1 to {MAX_FILTER} characters", name, "invalid_value")
    return found

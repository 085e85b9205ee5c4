"""The body and the headers of an error response, in OpenAI's shape, for each class of cluster/errors.py."""

import math
from typing import Any

from api.wire.response_headers import RETRY_AFTER, SAFETY_EVENT, SHOULD_RETRY
from cluster.errors import ContentFiltered, Overloaded, QuotaExceeded, RateLimited, ServingError, Unauthorized

MAX_MESSAGE, MAX_PARAM = 2000, 200
"""Characters of an error's message and of its `param` on the wire. An error may repeat megabytes that the client has
sent. Lower values cut messages that a client needs; higher values send more of the client's own text back.
"""

FULL_REPLICA_RETRY_S = 1.0
"""Retry-After of a request or connection that a full replica refuses, in seconds. Shorter brings it back to a replica
that is still full; longer leaves capacity unused.
"""


def error_body(error: ServingError) -> dict[str, Any]:
    """The error object always has its four keys, because clients read each of them."""
    param = error.param and _shortened(error.param, MAX_PARAM)
    return {
        "error": {"message": shown_message(error), "type": error.error_type, "param": param, "code": error.code},
    }


def shown_message(error: ServingError) -> str:
    """The message of an error as clients get it, on every surface."""
    return _shortened(str(error), MAX_MESSAGE)


def error_headers(error: ServingError) -> dict[str, str]:
    if isinstance(error, Overloaded):
        limits = error.headers if isinstance(error, RateLimited) else {}
        return {**limits, RETRY_AFTER: str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, QuotaExceeded):
        return {SHOULD_RETRY: "false"}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, ContentFiltered):
        return {SAFETY_EVENT: error.event_id, SHOULD_RETRY: "false"}
    return {}


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"

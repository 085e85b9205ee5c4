"""Errors in Anthropic's shape: the status, the body, and the event that ends a stream which cannot go on."""

from typing import Any

import msgspec

from api.wire.errors import shown_message
from cluster.errors import Overloaded, QuotaExceeded, ServingError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
"""Anthropic's type of an error by its status. A further status below 500 has the type of 400, and above that of 500."""

PAYMENT_REQUIRED, OVERLOADED = 402, 529
PROMPT_TOO_LONG = "prompt is too long"
"""The words by which clients recognize a prompt that exceeds the context window: Claude Code then compacts its
conversation.
"""


def http_status(error: ServingError) -> int:
    if isinstance(error, QuotaExceeded):
        return PAYMENT_REQUIRED
    if error.http_status == Overloaded.http_status:
        return OVERLOADED if isinstance(error, Overloaded) else ServingError.http_status
    return error.http_status


def error_body(error: ServingError, request_id: str) -> dict[str, Any]:
    status = http_status(error)
    told: dict[str, Any] = {
        "type": TYPES.get(status, TYPES[400] if status < 500 else TYPES[500]),
        "message": _message(error),
    }
    if error.code is not None:
        told["details"] = {"error_code": error.code}
    return {"type": "error", "error": told, "request_id": request_id}


def error_event(error: ServingError, request_id: str) -> bytes:
    """The last frame of a stream that fails after it has begun."""
    return b"event: error\ndata: " + msgspec.json.encode(error_body(error, request_id)) + b"\n\n"


def _message(error: ServingError) -> str:
    message = shown_message(error)
    return f"{PROMPT_TOO_LONG}: {message}" if error.code == "context_length_exceeded" else message

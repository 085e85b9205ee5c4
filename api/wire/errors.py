"""Errors on the wire: OpenAI's body, status and headers for each of cluster/errors.py."""

import math
from typing import Any

from cluster.errors import Overloaded, ServingError, Unauthorized

MAX_MESSAGE, MAX_PARAM = 2000, 200
"""Characters. An error may repeat what the client has sent, which may be megabytes."""


def error_body(error: ServingError) -> dict[str, Any]:
    """All four keys, always: clients read each."""
    message, param = _shortened(str(error), MAX_MESSAGE), error.param and _shortened(error.param, MAX_PARAM)
    return {
        "error": {"message": message, "type": error.error_type, "param": param, "code": error.code},
    }


def error_headers(error: ServingError) -> dict[str, str]:
    if isinstance(error, Overloaded):
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    return {}


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"

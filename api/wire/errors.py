"""Errors on the wire: OpenAI's body, status and headers for each of cluster/errors.py."""

import math
from typing import Any

from fastapi.responses import JSONResponse

from cluster.errors import Overloaded, ServingError


def error_body(error: ServingError) -> dict[str, Any]:
    """All four keys, always: clients read each."""
    return {
        "error": {"message": str(error), "type": error.error_type, "param": error.param, "code": error.code},
    }


def error_response(error: ServingError) -> JSONResponse:
    headers = {"retry-after": str(max(1, math.ceil(error.retry_after_s)))} if isinstance(error, Overloaded) else None
    return JSONResponse(error_body(error), status_code=error.http_status, headers=headers)

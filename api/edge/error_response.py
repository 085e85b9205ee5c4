"""An error as an HTTP response. This module alone decides which shape an error has: Anthropic's on the paths of its
Messages API (api/wire/messages/errors.py), and OpenAI's elsewhere (api/wire/errors.py).
"""

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from api.edge.request_id import SCOPE_KEY
from api.wire import errors
from api.wire.messages import errors as errors_of_messages
from api.wire.messages.surface import is_of_messages
from cluster.errors import ServingError


def error_response(error: ServingError, scope: Mapping[str, Any]) -> JSONResponse:
    """`scope`: of the request, with as much of it as is known. Without a path, the error has OpenAI's shape."""
    headers = errors.error_headers(error)
    if is_of_messages(scope.get("path", "")):
        body = errors_of_messages.error_body(error, scope.get(SCOPE_KEY, ""))
        return JSONResponse(body, status_code=errors_of_messages.http_status(error), headers=headers)
    return JSONResponse(errors.error_body(error), status_code=error.http_status, headers=headers)

"""An error as an HTTP response, in the shape that api/wire/errors.py gives it."""

from fastapi.responses import JSONResponse

from api.wire.errors import error_body, error_headers
from cluster.errors import ServingError


def error_response(error: ServingError) -> JSONResponse:
    return JSONResponse(error_body(error), status_code=error.http_status, headers=error_headers(error))

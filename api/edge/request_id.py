"""The id of an HTTP request, by which a client, an operator and a log line name the same request.

It is the client's `x-request-id` if that is a plain word, and otherwise a new id. Baton only shows this id. Engines and
workers know a request by an id that no client chooses (`Call.id`, api/frontend/generation.py). The `id` in the body of
an answer contains that id, and the route receipt of a request contains both.
"""

import logging
import re
import uuid
from contextvars import ContextVar

from api.wire.response_headers import REQUEST_ID
from cluster.observability.trace_context import TraceContext

HEADER = REQUEST_ID.encode()
MAX_CHARS = 128
"""Characters of an id from a client. A longer id is replaced by a new one. Higher lets clients write longer log lines.
"""

_SAFE = re.compile(rb"[A-Za-z0-9._:=+/@-]{1,%d}" % MAX_CHARS)

SCOPE_KEY = "baton.request_id"
"""Key in the ASGI scope of a request. The value is its id, once the edge has it."""
HTTP_REQUEST: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the HTTP request that is being answered. Empty in work that no request has caused."""
TRACE: ContextVar[TraceContext | None] = ContextVar("trace", default=None)
"""The trace of the HTTP request that is being answered. None if no traces are exported."""


def request_id_of(given: bytes | None) -> str:
    """The id that the client has sent, or a new one if `given` is None or not a plain word."""
    if given is not None and _SAFE.fullmatch(given):
        return given.decode("ascii")
    return f"req_{uuid.uuid4().hex}"


class RequestIds(logging.Filter):
    """Adds the id of the HTTP request that is being answered to each log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        if request_id := HTTP_REQUEST.get():
            record.request_id = request_id
        return True

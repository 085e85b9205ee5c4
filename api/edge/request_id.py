"""By what a client, an operator and a log line name the same HTTP request.

The client's own `x-request-id` where it is a plain word, else one that is made here. It is only ever shown: engines and
workers know a request by an id that no client chooses (`Call.id`, api/frontend/generation.py), which is in the `id` of
the answer's body and, beside this one, in the request's receipt.
"""

import logging
import re
import uuid
from contextvars import ContextVar

HEADER = b"x-request-id"
MAX_CHARS = 128

_SAFE = re.compile(rb"[A-Za-z0-9._:=+/@-]{1,%d}" % MAX_CHARS)

HTTP_REQUEST: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that is being answered; empty for what Baton does by itself."""


def request_id_of(given: bytes | None) -> str:
    """The client's, or a new one."""
    if given is not None and _SAFE.fullmatch(given):
        return given.decode("ascii")
    return f"req_{uuid.uuid4().hex}"


class RequestIds(logging.Filter):
    """Gives each log record the id of the request that is being answered, where there is one."""

    def filter(self, record: logging.LogRecord) -> bool:
        if request_id := HTTP_REQUEST.get():
            record.request_id = request_id
        return True

"""By what a client, an operator and a log line name the same HTTP request.

The client's own `x-request-id` where it is a plain word, else one that is made here. It is only ever shown: engines and
workers know a request by an id that no client chooses (`Call.id`, api/generation.py), which is in the `id` of the
answer's body and, beside this one, in the request's receipt.
"""

import logging
import re
import uuid
from contextvars import ContextVar

HEADER = b"x-request-id"
MAX_CHARS = 128

_SAFE = re.compile(rb"[A-Za-z0-9._:=+/@-]{1,%d}" % MAX_CHARS)

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that is being answered; empty for what Baton does by itself."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s [%(x_request_id)s] %(message)s"


def request_id_of(given: bytes | None) -> str:
    """The client's, or a new one."""
    if given is not None and _SAFE.fullmatch(given):
        return given.decode("ascii")
    return f"req_{uuid.uuid4().hex}"


class OneLine(logging.Formatter):
    """A message is one line whatever a client has put into it; a traceback follows."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        record.x_request_id = REQUEST_ID.get() or "-"
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


def log_with_request_ids(*names: str) -> None:
    """Have these loggers, and those below them, name the request in each line that they write to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine(LOG_FORMAT))
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False

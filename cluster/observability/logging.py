"""Logging in every process of the application: the handler of Baton's own loggers, and a `dictConfig` that only adds.

Serve, vLLM and NIXL configure logging in the same processes. vLLM does it when an engine's configuration is made, NIXL
when it is imported. Both call `logging.config.dictConfig`, which first closes every handler of the process, Serve's
file handler included. With a closed handler, a replica keeps its log records in memory instead of writing them, and
fails the first call of a restarted Serve controller, which then replaces the replica.
"""

import json
import logging
import logging.config
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

LEVEL_VARIABLE = "VLLM_LOGGING_LEVEL"
"""Environment variable of the log level, in every process of the application and in the engine cores."""
LEAST_LEVEL = logging.WARNING
"""Highest level of Baton's own loggers: their warnings are always logged. They are few, and each is about the cluster.
"""
ROOT_LOGGER = "baton"
FORMAT = "%(levelname)s %(asctime)s %(name)s [%(request_id)s] %(message)s"
FORMAT_VARIABLE = "BATON_LOG_FORMAT"
"""Environment variable of the form of log lines, in every process of the application: `text` or `json`."""
JSON = "json"
NO_REQUEST = "-"
"""The request id in records to which no filter has added one."""

INDENT = "    "
"""Prefix of each line of a traceback. A line without it begins a new record."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def set_up_logging(
    filters: Sequence[logging.Filter] = (), libraries: Sequence[str] = (), replica: str | None = None
) -> None:
    """Set up logging in this process. Call this before an engine's configuration is made and before NIXL is imported. A
    second call replaces the first one. The filters see every record of Baton's loggers and of the loggers of
    `libraries`, and may add `request_id` to it. `replica`: the name of this process in JSON lines; its process id if it
    has none.
    """
    configuring: Any = logging.config
    configuring.dictConfigClass = _AddingConfigurator
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines(replica or f"process-{os.getpid()}")
        if os.environ.get(FORMAT_VARIABLE, "").lower() == JSON
        else _OneLine(FORMAT, defaults={"request_id": NO_REQUEST})
    )
    for one in filters:
        handler.addFilter(one)
    for name in (ROOT_LOGGER, *libraries):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger(ROOT_LOGGER).setLevel(min(LEAST_LEVEL, _level()))


class _OneLine(logging.Formatter):
    """Formats a message as one line, even if it contains a client's text. An indented traceback follows: the text of an
    exception may come from a client, too.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        return _visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        return "\n".join(INDENT + _visible(line) for line in super().formatException(ei).split("\n"))


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object on one line. JSON escapes what could end the line."""

    def __init__(self, replica: str) -> None:
        super().__init__()
        self._replica = replica

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None),
            "replica": self._replica,
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        return json.dumps({name: value for name, value in entry.items() if value is not None})


def _visible(text: str) -> str:
    """Escape the characters that end a line or control a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _level() -> int:
    level = logging.getLevelName(os.environ.get(LEVEL_VARIABLE, "").upper())
    return level if isinstance(level, int) else LEAST_LEVEL


class _AddingConfigurator(logging.config.DictConfigurator):
    """Adds what its dictionary names. Closes no handler, and disables no logger that the dictionary does not name."""

    def configure(self) -> None:
        state: Any = logging
        state._acquireLock()
        try:
            handlers, named = list(state._handlerList), dict(state._handlers)
            state._handlerList.clear()
            state._handlers.clear()
            self.config["disable_existing_loggers"] = False
            try:
                super().configure()
            finally:
                state._handlerList[:0] = handlers
                state._handlers.update(
                    {name: handler for name, handler in named.items() if name not in state._handlers}
                )
        finally:
            state._releaseLock()

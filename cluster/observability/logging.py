"""How every process of the application logs: the handler of Baton's own loggers, and a `dictConfig` that adds.

Serve, vLLM and NIXL configure logging in the same processes. vLLM does it when an engine's configuration is made, NIXL
when it is imported, both by `logging.config.dictConfig`, which begins by closing every handler of the process, Serve's
file handler among them. With a closed handler a replica keeps its log records in memory instead of writing them, and
fails the first question of a Serve controller that has been restarted, which then replaces it.
"""

import logging
import logging.config
import os
import re
from collections.abc import Sequence
from typing import Any

LEVEL_VARIABLE = "VLLM_LOGGING_LEVEL"
"""Environment variable of the log level, in every process of the application and in the engine cores."""
LEAST_LEVEL = logging.WARNING
"""Baton's own warnings are logged at any level: they are few, and each is about the cluster, not about a start."""
ROOT_LOGGER = "baton"
FORMAT = "%(levelname)s %(asctime)s %(name)s [%(request_id)s] %(message)s"
NO_REQUEST = "-"
"""What stands for the request's id in records that no filter has given one."""

INDENT = "    "
"""Before each line of a traceback: no line that begins elsewhere is a record of its own."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def set_up_logging(filters: Sequence[logging.Filter] = (), libraries: Sequence[str] = ()) -> None:
    """To be called in each process before an engine's configuration is made and before NIXL is imported. A second call
    replaces what the first one made. The filters see every record of Baton's loggers, and of the loggers of
    `libraries`, and may add `request_id` to it.
    """
    configuring: Any = logging.config
    configuring.dictConfigClass = _AddingConfigurator
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine(FORMAT, defaults={"request_id": NO_REQUEST}))
    for one in filters:
        handler.addFilter(one)
    for name in (ROOT_LOGGER, *libraries):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger(ROOT_LOGGER).setLevel(min(LEAST_LEVEL, _level()))


class _OneLine(logging.Formatter):
    """A message is one line, whatever a client has put into it. A traceback follows it, in lines that are indented, for
    the text of an exception may be a client's too.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        return _visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        return "\n".join(INDENT + _visible(line) for line in super().formatException(ei).split("\n"))


def _visible(text: str) -> str:
    """Without characters that end a line or steer a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _level() -> int:
    level = logging.getLevelName(os.environ.get(LEVEL_VARIABLE, "").upper())
    return level if isinstance(level, int) else LEAST_LEVEL


class _AddingConfigurator(logging.config.DictConfigurator):
    """Makes what its dictionary names, closes no handler and disables no logger that it does not name."""

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

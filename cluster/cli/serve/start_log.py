"""The log of a service that `baton serve` starts: who may read it, and what it tells of a failed start."""

import re
from pathlib import Path

LOG_FILE = Path(".baton/logs/serve.log")
FAILED_STARTS = 2
"""Failed starts of a replica after which `baton serve` gives up. One failed start may be an accident, the second one is
the configuration. More delays the error; fewer gives up after an accident.
"""
EXCERPT_ERRORS = 4
"""Most errors that the excerpt of a log shows."""
EXCERPT_LINES = 20
"""Last lines of a log that are shown if it contains no error."""
_PROCESS_NAME = re.compile(r"(?m)^\x1b\[\d+m\(.*?\)\x1b\[0m ")
"""Ray's coloured prefix of a line of a worker."""
_ERROR = re.compile(r"(?m)^[\w.]+(?:Error|Exception): (?!Traceback).+(?:\n(?!Traceback|The above|  File|\s*$).+){0,4}")
"""The end of a traceback: the error, and the next lines of its message."""


def private(file: Path) -> Path:
    """Make a file that only its user can read, and return it. An error in a log may quote a request."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.parent.chmod(0o700)
    file.touch(mode=0o600)
    file.chmod(0o600)  # for a file that an earlier version has made
    return file


def has_failed_to_start(log: str) -> bool:
    """Whether Serve's log shows that the application cannot be built, or that replicas fail repeatedly. Serve itself
    would try forever.
    """
    return "failed with exception:" in log or log.count("the replica will be stopped") >= FAILED_STARTS


def excerpt(log: str) -> str:
    """The part of a log that explains a failure: each error once, or else the last lines."""
    log = _PROCESS_NAME.sub("", log)
    causes = dict.fromkeys(_ERROR.findall(log))
    return "\n".join(list(causes)[-EXCERPT_ERRORS:] or log.splitlines()[-EXCERPT_LINES:])

"""What the servers of our own (local_postgres.py, local_redis.py) have in common: how they fail."""

from pathlib import Path

LOG_LINES = 5


class ServiceFailed(Exception):
    """A service of our own does not start."""


def last_words(folder: Path) -> str:
    """How the log in its folder ends, for the end of a message."""
    log = folder / "log"
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return ""
    return f" {log} ends with:\n" + "\n".join(lines)

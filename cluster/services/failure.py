"""The error of the embedded servers (cluster/services/postgres.py, cluster/services/redis.py)."""

from pathlib import Path

LOG_LINES = 5
"""Lines of a server's log that an error quotes."""


class ServiceFailed(Exception):
    """An embedded server does not start."""


def log_excerpt(folder: Path) -> str:
    """The last lines of the log in a server's folder, for the end of an error message. Empty if there is no log."""
    log = folder / "log"
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return ""
    return f" {log} ends with:\n" + "\n".join(lines)

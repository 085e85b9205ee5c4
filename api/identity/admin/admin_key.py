"""The admin key, which each request on the admin port needs: from the environment, or from a file.

The first ingress replica makes the file. Replicas that start together agree on one key, because only one of them can
link its file to the name. On several nodes each node has a file of its own, so that there the environment has the key.
"""

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from cluster.config.environment import ADMIN_KEY_VARIABLE

ADMIN_PREFIX = "baton-admin-"
ADMIN_KEY_FILE = "admin-key"
"""Name of the file in `state.data_dir`."""
SECRET_BYTES = 32
"""Random bytes of a key that Baton makes. Fewer can be guessed; more makes longer headers."""
LEAST_SECRET_CHARS, MOST_SECRET_CHARS = 32, 256
"""Characters of the secret that an operator chooses. Fewer can be guessed; more makes each request longer."""
_FORM = re.compile(rf"{ADMIN_PREFIX}[A-Za-z0-9_-]{{{LEAST_SECRET_CHARS},{MOST_SECRET_CHARS}}}")


def established_admin_key(folder: Path) -> str:
    """The admin key of a replica that starts. Makes the file of the key in `folder` if neither it nor the environment
    has one.

    Raises:
        ValueError: what the environment or the file has is no admin key.
        OSError: the file cannot be read or written.
    """
    if given := os.environ.get(ADMIN_KEY_VARIABLE):
        return _checked(given, ADMIN_KEY_VARIABLE)
    file = folder / ADMIN_KEY_FILE
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)  # services in this folder may run as other users
        if not file.exists():
            _make(file)
        return _in_file(file)
    except OSError as error:
        raise OSError(f"the admin key cannot be kept in {file} ({error}): set {ADMIN_KEY_VARIABLE}") from error


def known_admin_key(folder: Path) -> str:
    """The admin key of a service that runs, for who asks it. `folder`: the service's `state.data_dir`.

    Raises:
        LookupError: neither the environment nor the folder has a key.
        ValueError: what they have is no admin key.
        OSError: the file cannot be read.
    """
    if given := os.environ.get(ADMIN_KEY_VARIABLE):
        return _checked(given, ADMIN_KEY_VARIABLE)
    file = folder / ADMIN_KEY_FILE
    if not file.exists():
        raise LookupError(
            f"there is no admin key: set {ADMIN_KEY_VARIABLE} to that of the service, or name the config of a service "
            f"on this machine (its first start makes {file})"
        )
    return _in_file(file)


def _make(file: Path) -> None:
    """Make the file with a new key, unless another replica makes it first: then its key counts."""
    with NamedTemporaryFile("w", dir=file.parent, prefix=f"{ADMIN_KEY_FILE}.") as made:  # with mode 0600
        made.write(f"{ADMIN_PREFIX}{secrets.token_urlsafe(SECRET_BYTES)}\n")
        made.flush()
        os.fsync(made.fileno())
        with suppress(FileExistsError):
            os.link(made.name, file)


def _in_file(file: Path) -> str:
    return _checked(file.read_text().strip(), f"{file} (delete it, and the next start of an ingress makes another one)")


def _checked(text: str, where: str) -> str:
    """Raises ValueError, which never shows the text."""
    if not _FORM.fullmatch(text):
        raise ValueError(
            f"the admin key must be {ADMIN_PREFIX} and {LEAST_SECRET_CHARS} to {MOST_SECRET_CHARS} letters, digits, "
            f"'-' and '_', and is not: {where}"
        )
    return text

"""The secret of the application. A process that knows the secret belongs to the cluster. The secret proves connections
and is never sent on one.

The operator sets BATON_CLUSTER_SECRET in the environment of every node. Otherwise the first process of the application
makes a secret and stores it where all its processes find it.
"""

import os
import secrets
from collections.abc import Callable

from cluster.config.environment import SECRET_VARIABLE

MIN_SECRET_CHARS = 32
"""Least number of characters of a secret. From a proof that an attacker sees on the network, the attacker can try
guesses offline. Fewer characters can be guessed; more refuses secrets that are strong enough.
"""


def establish_secret(keep_first: Callable[[str], str]) -> None:
    """Give this process, and its later child processes, the secret of the application.

    `keep_first` stores its argument if nothing is stored yet, and returns the stored value. It is not called if the
    operator has set the secret. Raises ValueError if the secret is too short.
    """
    if not os.environ.get(SECRET_VARIABLE):
        os.environ[SECRET_VARIABLE] = keep_first(secrets.token_hex(32))
    cluster_secret()


def cluster_secret() -> bytes:
    """The secret of this process. Raises RuntimeError if the process has none, and ValueError if the secret is too
    short.
    """
    secret = os.environ.get(SECRET_VARIABLE, "")
    if not secret:
        raise RuntimeError(
            f"this process does not know the secret of its application: {SECRET_VARIABLE} is not set, and "
            "establish_secret was not called"
        )
    if len(secret) < MIN_SECRET_CHARS:
        raise ValueError(f"{SECRET_VARIABLE} has {len(secret)} characters; it must have {MIN_SECRET_CHARS} or more")
    return secret.encode()

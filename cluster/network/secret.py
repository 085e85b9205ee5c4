"""The secret of the application. Whoever knows it belongs to the cluster; it proves connections and is never sent on
one.

The operator sets it as BATON_CLUSTER_SECRET in the environment of every node. Otherwise the first process of the
application makes one and keeps it where the others find it.
"""

import os
import secrets
from collections.abc import Callable

from cluster.config.environment import SECRET_VARIABLE

MIN_SECRET_CHARS = 32
"""A proof that is seen on the network lets secrets be guessed without asking anybody. A shorter secret may be guessed;
a longer minimum refuses secrets that are strong enough.
"""


def establish_secret(keep_first: Callable[[str], str]) -> None:
    """Give this process, and the children that it starts from now on, the secret of the application.

    `keep_first` keeps its argument if nothing is kept yet, and returns what is kept. It is not called where the
    operator has set the secret. Raises ValueError for a secret that is too short.
    """
    if not os.environ.get(SECRET_VARIABLE):
        os.environ[SECRET_VARIABLE] = keep_first(secrets.token_hex(32))
    cluster_secret()


def cluster_secret() -> bytes:
    """Raises RuntimeError where the process has not been given the secret, ValueError where it is too short."""
    secret = os.environ.get(SECRET_VARIABLE, "")
    if not secret:
        raise RuntimeError(
            f"this process does not know the secret of its application: {SECRET_VARIABLE} is not set, and "
            "establish_secret was not called"
        )
    if len(secret) < MIN_SECRET_CHARS:
        raise ValueError(f"{SECRET_VARIABLE} has {len(secret)} characters, and must have {MIN_SECRET_CHARS} or more")
    return secret.encode()

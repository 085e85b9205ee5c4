"""Tenants, which are named by hashes of their API keys."""

import hashlib
from typing import Any

NO_KEY = "anonymous"
"""Name under which PostgreSQL and Redis hold the data of requests without an API key."""

TENANT = "tenant"
"""Key in the state of a request. The value is the name of the tenant."""


def tenant_of_key(key: str) -> str:
    """The name of the tenant that an API key belongs to. It is a hash, so that the name does not reveal the key."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def tenant_of(request: Any) -> str:
    """The tenant of a request that the edge (api/edge/edge.py) has admitted. Empty without an API key."""
    return str(request.scope["state"][TENANT])


def tenant_in_state(request: Any) -> str:
    """The tenant of a request as PostgreSQL and Redis know it: NO_KEY without an API key."""
    return tenant_of(request) or NO_KEY

"""Tenants by their API keys. Pure."""

import hashlib
from typing import Any

NO_KEY = "anonymous"
"""The tenant, in what is remembered, of those who send no API key."""

TENANT = "tenant"
"""Where the state of a request has its tenant."""


def tenant_of_key(key: str) -> str:
    """Whoever has the same API key is the same tenant. Its name does not give the key away."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def tenant_of(request: Any) -> str:
    """Of a request that the edge (api/edge/edge.py) has let in. Empty without an API key."""
    return str(request.scope["state"][TENANT])


def tenant_in_state(request: Any) -> str:
    """As what is remembered knows it."""
    return tenant_of(request) or NO_KEY

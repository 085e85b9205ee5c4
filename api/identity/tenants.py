"""The tenant of a request, and the names of tenants. Pure."""

import hashlib
from typing import Any

from api.identity.caller import NO_KEY
from api.identity.principal import Principal

PRINCIPAL = "principal"
"""Key in the state of a request. The value is the Principal."""


def tenant_of_key(key: str) -> str:
    """The name of the tenant of a key where no credential is required, and of all keys before there were accounts. It
    is a hash, so that the name does not reveal the key.
    """
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def principal_of(request: Any) -> Principal:
    """Who has sent a request that the edge (api/edge/edge.py) has admitted."""
    principal: Principal = request.scope["state"][PRINCIPAL]
    return principal


def tenant_of(request: Any) -> str:
    """The tenant of a request that the edge has admitted. Empty without a credential."""
    return principal_of(request).tenant


def tenant_in_state(request: Any) -> str:
    """The tenant of a request as PostgreSQL and Redis know it: NO_KEY without a credential."""
    return tenant_of(request) or NO_KEY

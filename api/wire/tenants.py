"""Tenants by their API keys. Pure."""

import hashlib


def tenant_of_key(key: str) -> str:
    """Does not give the key away."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]

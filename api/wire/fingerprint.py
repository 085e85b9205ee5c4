"""The fingerprint of a request, by which api/responses/idempotency.py recognises a request that is sent again."""

import hashlib
from typing import Any

import msgspec


def fingerprint(tenant: str, endpoint: str, body: Any) -> str:
    """A hash of a request. Order and spacing of the JSON objects in its body do not change it."""
    canonical = msgspec.json.encode([tenant, endpoint, body], order="deterministic")
    return hashlib.sha256(canonical).hexdigest()

"""By what a request is known again when it is sent once more."""

import hashlib
from typing import Any

import msgspec


def fingerprint(tenant: str, endpoint: str, body: Any) -> str:
    """The same for the same JSON, however its objects are ordered and spaced."""
    canonical = msgspec.json.encode([tenant, endpoint, body], order="deterministic")
    return hashlib.sha256(canonical).hexdigest()

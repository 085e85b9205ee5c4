"""API keys that no request has had before. A request finds KV blocks of requests with the same API key only
(`GenerateRequest.cache_salt`), so the engine computes the prompt of a fresh key anew, whatever it has cached.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4


def fresh_key() -> str:
    return f"sk-{uuid4().hex}"


def bearer(key: str) -> dict[str, str]:
    """Headers."""
    return {"authorization": f"Bearer {key}"}


def require_computed_anew(usage: Mapping[str, Any]) -> None:
    """`usage`: of the answer, as JSON.

    Raises:
        AssertionError: a part of the prompt came from a cache, or the usage does not say.
    """
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    assert cached == 0, f"{cached} of {usage.get('prompt_tokens')} prompt tokens came from a cache"

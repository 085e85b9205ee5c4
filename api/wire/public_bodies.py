"""vLLM's response bodies and stream frames in the shape of OpenAI's schema. Fields about vLLM's engines are removed,
and so are optional fields that are null.
"""

from typing import Any

INTERNAL = frozenset(
    {"kv_transfer_params", "ec_transfer_params", "prompt_routed_experts", "routed_experts", "metrics", "prompt_text"}
)
"""Fields of vLLM's answers that clients do not get."""

_NULLABLE = frozenset(
    {"content", "refusal", "logprobs", "finish_reason", "param", "code", "service_tier", "system_fingerprint"}
)
"""Fields that stay in the body where they are null, because OpenAI's schema requires them. All other nulls are removed.
"""

_NULL_EXTRAS = ("prompt_token_ids", "prompt_text", "token_ids", "stop_reason")
"""Fields that vLLM adds to stream chunks, and that are null unless the client has asked for them."""


def public_frame(frame: str) -> str:
    """A stream frame of vLLM without the null fields that vLLM adds. The function searches the frame as text. Quotes
    inside a JSON string are escaped, so the searched text cannot occur in a string.
    """
    for name in _NULL_EXTRAS:
        frame = frame.replace(f',"{name}":null', "")
    return frame


def public(body: dict[str, Any]) -> dict[str, Any]:
    """A response body of vLLM without the fields that clients must not see, and without optional nulls."""
    return {name: _public_value(name, value) for name, value in body.items() if _is_public(name, value)}


def _is_public(name: str, value: Any) -> bool:
    return name not in INTERNAL and (value is not None or name in _NULLABLE)


def _public_value(name: str, value: Any) -> Any:
    if name == "logprobs":  # its keys may be texts of tokens, which may equal any name above
        return {"refusal": None, **value} if isinstance(value, dict) and "content" in value else value
    if isinstance(value, dict):
        return public(value)
    if isinstance(value, list):
        return [_public_value(name, item) for item in value]
    return value

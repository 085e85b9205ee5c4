"""Response bodies as OpenAI's schema has them: what vLLM adds of its engines' affairs is dropped, optional nulls are
absent.
"""

from typing import Any

_INTERNAL = frozenset(
    {"kv_transfer_params", "ec_transfer_params", "prompt_routed_experts", "routed_experts", "metrics", "prompt_text"}
)

_NULLABLE = frozenset(
    {"content", "refusal", "logprobs", "finish_reason", "param", "code", "service_tier", "system_fingerprint"}
)
"""OpenAI's schema has these as null rather than absent."""


_NULL_EXTRAS = ("prompt_token_ids", "prompt_text", "token_ids", "stop_reason")
"""What vLLM adds to stream chunks, as null unless asked for."""


def public_frame(frame: str) -> str:
    """A vLLM stream frame for the client. Works on the text: quotes inside a JSON string are escaped, so none can
    match.
    """
    for name in _NULL_EXTRAS:
        frame = frame.replace(f',"{name}":null', "")
    return frame


def public(body: dict[str, Any]) -> dict[str, Any]:
    """A vLLM response body for the client."""
    return {name: _public_value(name, value) for name, value in body.items() if _is_public(name, value)}


def _is_public(name: str, value: Any) -> bool:
    return name not in _INTERNAL and (value is not None or name in _NULLABLE)


def _public_value(name: str, value: Any) -> Any:
    if name == "logprobs":  # keyed by token texts, which may be any of the names above
        return {"refusal": None, **value} if isinstance(value, dict) and "content" in value else value
    if isinstance(value, dict):
        return public(value)
    if isinstance(value, list):
        return [_public_value(name, item) for item in value]
    return value

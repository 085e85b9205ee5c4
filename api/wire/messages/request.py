"""The body of a request of Anthropic's Messages API: which of its fields Baton reads, ignores and refuses, and what its
content blocks may be. vLLM's request model defines the types of the fields that are read.

vLLM's translator leaves out content that it does not know. Such content is refused here, because a model that does not
see what its client has sent gives a wrong answer.
"""

from collections.abc import Iterator
from typing import Any

from api.wire.limits.bounds import MAX_PARTS
from cluster.errors import InvalidRequest

READ = frozenset(
    {
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "output_config",
        "service_tier",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
IGNORED = frozenset(
    {
        "betas",
        "billing_policy",
        "cache_control",
        "compaction",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Anthropic's fields that do not change what the model is asked. They are accepted without an effect, because Claude
Code and the official clients send them.
"""
UNSUPPORTED = frozenset({"container", "mcp_servers", "output_format", "thread"})
"""Anthropic's fields that would change the answer and that Baton does not support. They are refused if they are neither
null nor empty.
"""
_NO_THREADS = "thread_unsupported_request"
"""Anthropic's code for a conversation that the server shall hold, and does not. By it, the helpers of the official
clients know that they must send each turn with the whole conversation.
"""
CUSTOM_TOOL = "custom"
"""The type of the tools that a client defines by a schema and runs itself."""
BLOCKS = frozenset(
    {
        "redacted_thinking",
        "text",
        "thinking",
        "tool_addition",
        "tool_reference",
        "tool_removal",
        "tool_result",
        "tool_use",
    }
)
"""Types of the content blocks that vLLM's translator reads, but for images."""
_TEXTS_OF_RESULTS = frozenset({"text", "tool_reference"})
_NUMBERS = frozenset({"max_tokens", "temperature", "top_k", "top_p"})
"""Fields for which pydantic would take true and false as 1 and 0."""
TIERS = {"standard_only": "default"}
"""Anthropic's service tiers that have another name in OpenAI's API."""


def read_fields(body: Any) -> dict[str, Any]:
    """The fields of a body that Baton reads, without those that are null.

    Raises:
        InvalidRequest: the body is not an object, a field of it is unknown or not supported, a block is of a kind that
            no model here can read, or there are too many blocks.
    """
    if not isinstance(body, dict):
        raise InvalidRequest("the request body must be a JSON object", None, "invalid_type")
    for name, value in body.items():
        if name in UNSUPPORTED and value:
            code = _NO_THREADS if name == "thread" else "unsupported_parameter"
            raise InvalidRequest(f"{name}: this service does not support this field", name, code)
        if name not in READ and name not in IGNORED and name not in UNSUPPORTED:
            raise InvalidRequest(f"{name[:64]}: unknown field", name, "unknown_parameter")
    read = {name: value for name, value in body.items() if name in READ and value is not None}
    for name in _NUMBERS & read.keys():
        if isinstance(read[name], bool):
            raise InvalidRequest(f"{name}: a number is wanted, and not true or false", name, "invalid_type")
    _check_tools(read.get("tools"))
    _check_blocks(read)
    return read


def for_charging(body: dict[str, Any]) -> dict[str, str]:
    """The fields of a chat completion that say who asks, and in which SLO class."""
    found = {}
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if user is not None:
        if not isinstance(user, str):
            raise InvalidRequest("metadata.user_id must be a string", "metadata.user_id", "invalid_type")
        found["user"] = user
    if (tier := body.get("service_tier")) is not None:
        found["service_tier"] = TIERS.get(tier, tier) if isinstance(tier, str) else tier
    return found


def _check_tools(tools: Any) -> None:
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind is not None and kind != CUSTOM_TOOL:
            named = kind[:64] if isinstance(kind, str) else type(kind).__name__
            raise InvalidRequest(
                f"tools.{number}.type: {named!r} is not supported: this service runs no tools of its own, so each tool"
                " needs an input_schema and is run by the client",
                f"tools.{number}.type",
                "unsupported_value",
            )


def _check_blocks(body: dict[str, Any]) -> None:
    for number, (path, block) in enumerate(_blocks_of(body)):
        if number >= MAX_PARTS:
            message = f"messages and system have more than {MAX_PARTS} content blocks"
            raise InvalidRequest(message, "messages", "array_above_max_length")
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "image":
            raise InvalidRequest(f"{path}: the model reads text only, and no images", path, "unsupported_value")
        if isinstance(kind, str) and kind not in BLOCKS:
            message = f"{path}.type: blocks of type {kind[:64]!r} are not supported"
            raise InvalidRequest(message, f"{path}.type", "unsupported_value")


def _blocks_of(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Path and content of all blocks, those in results of tools included. Raises InvalidRequest for a result whose
    content is neither text nor the name of a tool.
    """
    yield from _entries("system", body.get("system"))
    for path, message in _entries("messages", body.get("messages")):
        for inner, block in _entries(f"{path}.content", message.get("content") if isinstance(message, dict) else None):
            yield inner, block
            if isinstance(block, dict) and block.get("type") == "tool_result":
                for part_path, part in _entries(f"{inner}.content", block.get("content")):
                    yield part_path, part
                    _check_result(part_path, part)


def _entries(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for number, entry in enumerate(value):
            yield f"{path}.{number}", entry


def _check_result(path: str, part: Any) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _TEXTS_OF_RESULTS:
        raise InvalidRequest(
            f"{path}.type: the result of a tool must be text: a string, or blocks of type 'text'",
            f"{path}.type",
            "unsupported_value",
        )
    if kind == "text" and not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{path}.text must be a string", f"{path}.text", "invalid_type")

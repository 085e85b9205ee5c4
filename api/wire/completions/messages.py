"""The messages that a stored chat completion answers, as OpenAI lists them. Pure."""

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_KEPT = ("name", "tool_calls", "tool_call_id")
_LISTED_PARTS = ("text", "image_url")


def listed_messages(completion: str, messages: Sequence[Message]) -> list[Message]:
    """Each with an id, and a content of several parts beside the text."""
    return [_listed(f"{completion}-{number}", message) for number, message in enumerate(messages)]


def _listed(message_id: str, message: Message) -> Message:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {
        "id": message_id,
        "role": message["role"],
        "content": None if parts is not None else content,
        "refusal": message.get("refusal"),
        "content_parts": None if parts is None else [part for part in map(_part, parts) if part is not None],
        **{name: message[name] for name in _KEPT if message.get(name) is not None},
    }


def _part(part: Any) -> Message | None:
    """None for kinds that are not listed."""
    if isinstance(part, str):  # vLLM takes these too
        return {"type": "text", "text": part}
    return part if part.get("type") in _LISTED_PARTS else None

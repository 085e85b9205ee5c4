"""The messages that a stored chat completion answers, as OpenAI lists them."""

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_OPTIONAL_FIELDS = ("name", "tool_calls", "tool_call_id")
"""Fields that a listed message has only if the stored message has them."""
_LISTED_PARTS = ("text", "image_url")
"""Types of content parts that are listed. All other parts are left out."""


def listed_messages(completion: str, messages: Sequence[Message]) -> list[Message]:
    """The messages with an id each. Content that consists of parts is listed in `content_parts`, and content that is a
    text in `content`.
    """
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
        **{name: message[name] for name in _OPTIONAL_FIELDS if message.get(name) is not None},
    }


def _part(part: Any) -> Message | None:
    """A content part as it is listed. None for a part of a type that is not listed."""
    if isinstance(part, str):  # vLLM accepts a plain text as a part, too
        return {"type": "text", "text": part}
    return part if part.get("type") in _LISTED_PARTS else None

"""What the model is told beside the items that it is sent: summaries and memories, in front of a user's message. Pure.

They are part of that message because templates differ in what they make of any other: some refuse two messages of a
role in a row, and some gather system messages at the beginning, where each would change the prefix of the prompt. And
nothing that was once said gets the authority of a system message.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from api.context.turn_boundaries import Item, num_system

EXCERPT_CHARS = 600
"""Of each message that a turn is reminded of."""
MESSAGE_TOKENS = 16
"""More than templates put around a message, where it is not measured: the sum of counts with it is to be no less than
the prompt has.
"""
SEAM_TOKENS = 1
"""That a text may have more of within a template than by itself."""
IMAGE_TOKENS = 1024
"""What an image counts where it cannot be looked at."""

_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System", "developer": "System"}


def composed(
    items: Sequence[Item], cut: int, summary: str | None = None, memories: Mapping[str, str] | None = None
) -> list[Item]:
    """The items that are sent: the system prompt and what follows the cut. `summary`: stands for what does not.
    `memories`: by the id of the message that they belong to. The summaries that clients have sent are in place.
    """
    waiting = [] if summary is None else [summary_note(summary)]
    sent: list[Item] = []
    for item in (*items[: min(num_system(items), cut)], *items[cut:]):
        if item["type"] == "compaction":
            waiting.append(summary_note(item["summary"]))
            continue
        if item["type"] == "message" and item["role"] == "user":
            if memory := (memories or {}).get(item.get("id", "")):
                waiting.append(memory)
            parts = [_text_part(note) for note in waiting]
            sent.append({**item, "content": [*parts, *item["content"]]} if parts else item)
            waiting = []
            continue
        if waiting and not _is_instruction(item):
            sent.append(user_message(*waiting))
            waiting = []
        sent.append(item)
    return [*sent, user_message(*waiting)] if waiting else sent


def summary_note(summary: str) -> str:
    return f"What was said before, in short:\n{summary}\n"


def memory_note(remembered: Iterable[Item]) -> str:
    lines = (f"- {_SPEAKERS[item['role']]}: {shortened(text_of(item), EXCERPT_CHARS)}\n" for item in remembered)
    return "Said earlier in this conversation:\n" + "".join(lines)


def user_message(*texts: str) -> Item:
    return {"type": "message", "role": "user", "content": [_text_part(text) for text in texts]}


def text_of(item: Item) -> str:
    """All that the model reads of it."""
    match item["type"]:
        case "message":
            return _joined(item["content"])
        case "reasoning":
            return _joined(item.get("content") or item.get("summary") or ())
        case "function_call":
            return f"{item['name']} {item['arguments']}"
        case "function_call_output":
            return item["output"] if isinstance(item["output"], str) else _joined(item["output"])
        case "compaction":
            return summary_note(item["summary"])
    return ""


def num_images(item: Item) -> int:
    match item["type"]:
        case "message":
            parts = item["content"]
        case "function_call_output" if not isinstance(item["output"], str):
            parts = item["output"]
        case _:
            return 0
    return sum(part["type"] == "input_image" for part in parts)


def spoken(item: Item, max_chars: int) -> str:
    """As a line of a transcript; empty for what the model has only thought."""
    text = shortened(text_of(item), max_chars)
    match item["type"]:
        case "message":
            return f"{_SPEAKERS[item['role']]}: {text}\n"
        case "function_call":
            return f"Assistant calls {text}\n"
        case "function_call_output":
            return f"Result: {text}\n"
        case "compaction":
            return text
    return ""


def shortened(text: str, max_chars: int) -> str:
    """Without its middle, if it is longer."""
    if len(text) <= max_chars:
        return text
    half = max(1, (max_chars - 3) // 2)
    return f"{text[:half]} … {text[-half:]}"


def _joined(parts: Iterable[Item]) -> str:
    return "\n".join(_words(part) for part in parts)


def _words(part: Item) -> str:
    match part["type"]:
        case "refusal":
            return str(part["refusal"])
        case "input_image" | "input_file":
            return ""
    return str(part["text"])


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _is_instruction(item: Item) -> bool:
    return item["type"] == "message" and item["role"] != "assistant"

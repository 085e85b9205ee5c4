"""Notes in a prompt: summaries and memories, which the model reads in front of a user's message. Pure.

A note is a part of the user's message, not a message of its own, because chat templates differ: some refuse two
messages of one role in a row, and some gather system messages at the beginning, where each note would change the
prefix of the prompt. Besides, no text of the conversation may get the authority of a system message.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from api.context.turn_boundaries import Item, num_system

EXCERPT_CHARS = 600
"""Characters of each message that a turn is reminded of. More tells the model more of each message; fewer makes room
for more messages.
"""
MESSAGE_TOKENS = 16
"""Tokens that the chat template puts around a message, as long as it is not measured. It must not be too low: the
counted tokens would be fewer than the prompt has. Higher leaves more items out.
"""
SEAM_TOKENS = 1
"""Tokens that a text may have more inside a template than alone. Lower can undercount a prompt; higher leaves more
items out.
"""
IMAGE_TOKENS = 1024
"""Tokens that an image counts as, because its size is not known here. Lower undercounts prompts with large images;
higher leaves more items out.
"""

_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System", "developer": "System"}


def composed(
    items: Sequence[Item], cut: int, summary: str | None = None, memories: Mapping[str, str] | None = None
) -> list[Item]:
    """The items that are sent: the system prompt and the items from the cut on. `summary`: of the items that are left
    out. `memories`: notes, by the id of the message that they stand before. The compactions of clients become notes in
    their place.
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
    """The text of an item that the model reads."""
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
    """An item as a line of a transcript. Empty for reasoning."""
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
    """The text, without its middle if it is longer than `max_chars`."""
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

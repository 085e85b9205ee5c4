"""The turns of a conversation: groups of items that are sent or left out together. Pure.

A turn begins with a user's message and ends before the next one, so that tool calls stay with their results. System and
developer messages belong to the turn of the user's message after them. Those that begin the conversation are its system
prompt, which belongs to no turn.
"""

from collections.abc import Sequence
from typing import Any

Item = dict[str, Any]
"""An item, as the API shows it."""

SYSTEM_ROLES = ("system", "developer")


def turn_starts(items: Sequence[Item]) -> list[int]:
    """The first item of each turn."""
    first = num_system(items)
    split = _between_calls_and_results(items)
    return [at for at in range(first, len(items)) if at == first or (_begins(items, at) and at not in split)]


def num_system(items: Sequence[Item]) -> int:
    """The number of items of the system prompt."""
    return next((at for at, item in enumerate(items) if not _is_system(item)), len(items))


def is_asked(item: Item) -> bool:
    """Whether an item is input of a model, rather than its output."""
    is_made = item["type"] in ("reasoning", "function_call") or item.get("role") == "assistant"
    return not is_made


def _begins(items: Sequence[Item], at: int) -> bool:
    item = items[at]
    is_input = item["type"] == "compaction" or (item["type"] == "message" and item["role"] != "assistant")
    return is_input and not _leads_over(items[at - 1])


def _leads_over(item: Item) -> bool:
    return item["type"] == "compaction" or _is_system(item)


def _is_system(item: Item) -> bool:
    return item["type"] == "message" and item["role"] in SYSTEM_ROLES


def _between_calls_and_results(items: Sequence[Item]) -> set[int]:
    call_of: dict[str, int] = {}
    last_result: dict[int, int] = {}
    """The place of the last result of each call, by the place of the call."""
    for at, item in enumerate(items):
        if item["type"] == "function_call":
            call_of[item["call_id"]] = at
        elif item["type"] == "function_call_output" and item["call_id"] in call_of:
            last_result[call_of[item["call_id"]]] = at
    inside: set[int] = set()
    end = 0
    for call in sorted(last_result):
        inside.update(range(max(call, end) + 1, last_result[call] + 1))
        end = max(end, last_result[call])
    return inside

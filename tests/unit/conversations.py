"""Conversations for the context manager: their items, and what hypothesis makes of them."""

from typing import Any

from hypothesis import strategies as st

Item = dict[str, Any]


def said(role: str, text: str, item_id: str = "") -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"id": item_id, "type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def called(call_id: str, item_id: str = "") -> Item:
    return {"id": item_id, "type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}


def returned(call_id: str, item_id: str = "", output: Any = "it") -> Item:
    return {"id": item_id, "type": "function_call_output", "call_id": call_id, "output": output}


def numbered(items: list[Item]) -> list[Item]:
    return [{**item, "id": f"item_{number}"} for number, item in enumerate(items)]


@st.composite
def turns(draw: st.DrawFn) -> list[Item]:
    """A question, perhaps some calls with their results, and an answer."""
    words = st.integers(1, 60).map(lambda number: "word " * number)
    items = [said("user", draw(words))]
    if draw(st.booleans()) and draw(st.booleans()):
        items.insert(0, said("developer", draw(words)))
    for _ in range(draw(st.integers(0, 2))):
        call_id = draw(st.uuids()).hex
        items += [called(call_id), returned(call_id, output=draw(words))]
    return [*items, said("assistant", draw(words))]


@st.composite
def conversations(draw: st.DrawFn, min_turns: int = 1, max_turns: int = 25) -> list[Item]:
    """Conversations whose last turn waits for its answer."""
    system = [said("system", "Be brief.")] if draw(st.booleans()) else []
    made = draw(st.lists(turns(), min_size=min_turns, max_size=max_turns))
    return numbered([*system, *(item for turn in made for item in turn)][:-1])

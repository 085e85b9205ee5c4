"""Short forms of the events of a response. A short form leaves out what the earlier events of the response contain.

Memory, PostgreSQL and Redis hold events in this form, so that each text is stored once. A short event is a line of
bytes:

- A delta is its text as JSON. If the delta has log probabilities, a tab and these log probabilities follow.
- Every event of another type is a JSON object. A response in an event is stored without its output, as the difference
  to the response as it was created (api/wire/differences.py). An event at the end of an item leaves out the text of the
  deltas.

Earlier versions of Baton have stored events in full. Such events are read as they are.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from api.wire.differences import applied, difference
from api.wire.responses.events import LAST, Body, Event, Item, item_of

Line = bytes
"""A short event."""

_KINDS = ("response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta")
_REPEATING = {
    "response.output_text.done": ("text", "logprobs"),
    "response.reasoning_text.done": ("text",),
    "response.function_call_arguments.done": ("name", "arguments"),
    "response.content_part.done": ("part",),
}
"""Types of the events at the end of an item, and their fields that repeat the deltas of the item."""
LARGE_BYTES = 256 << 10
"""Bytes of a response as it was created, above which the events that repeat it belong into a thread. A lower value
costs the events of small responses a switch of threads; a higher value holds up the event loop for longer.
"""
_DELTA, _OBJECT = b'"', b"{"
"""First byte of a line that is a delta, and of a line that is an event of another type."""
_TAB = b"\t"
"""Separator in a delta. A tab inside of a JSON string is always escaped."""
_ITEM_DONE = "response.output_item.done"


def shortened(event: Event, created: Body) -> Line:
    """The short form of an event. `created` is the response as it was created, without output."""
    kind = event["type"]
    if kind in _KINDS:
        text = msgspec.json.encode(event["delta"])
        logprobs = event.get("logprobs")
        return text + _TAB + msgspec.json.encode(logprobs) if logprobs else text
    if kind in _REPEATING:
        event = {name: value for name, value in event.items() if name not in _REPEATING[kind]}
    elif kind == _ITEM_DONE:
        event = {**event, "item": {"status": event["item"]["status"]}}
    elif "response" in event:
        event = {**event, "response": difference({**event["response"], "output": []}, created)}
    return msgspec.json.encode(event)


class _Typed(msgspec.Struct):
    type: str


def is_last(line: Line) -> bool:
    """Whether an event is the last of its response."""
    return line.startswith(_OBJECT) and msgspec.json.decode(line, type=_Typed).type in LAST


def whole(lines: Iterable[Line], created: Body) -> list[bytes]:
    """All events of a response in full, as JSON. `lines` are its events from the first on."""
    restorer = EventRestorer(created)
    return [restorer.in_full(line) for line in lines]


class EventRestorer:
    """Restores the events of one response from their short forms, in their order from the first event on."""

    def __init__(self, created: Body) -> None:
        self._created = created
        self._is_large = len(msgspec.json.encode(created)) > LARGE_BYTES
        self._number = 0
        """Number of the next event."""
        self._item: Item | None = None
        self._ended: dict[str, Body] = {}
        """The fields of the events at the end of the current item, by the types of the events."""
        self._output: list[Body] = []
        self._before_number = self._after_number = self._after_text = b""
        """The JSON of a delta of the current item around its number, its text and its log probabilities."""

    def in_full(self, line: Line) -> bytes:
        """The next event in full, as JSON."""
        whole = self._delta(line) if line.startswith(_DELTA) else self._other(line)
        self._number += 1
        return whole

    def is_long(self, line: Line) -> bool:
        """Whether the event repeats a large response. If so, `in_full` should be called in a thread."""
        return self._is_large and line.startswith(_OBJECT) and b'"response":' in line

    def _delta(self, line: Line) -> bytes:
        assert self._item is not None
        text, _, logprobs = line.partition(_TAB)
        self._item.add(msgspec.json.decode(text, type=str), _listed(logprobs) if logprobs else [])
        delta = b"%b%d%b%b" % (self._before_number, self._number, self._after_number, text)
        if not self._after_text:
            return delta + b"}"
        return b"%b%b%b}" % (delta, self._after_text, logprobs or b"[]")

    def _other(self, line: Line) -> bytes:
        event: Event = msgspec.json.decode(line)
        kind = event["type"]
        if kind == "response.output_item.added":
            self._begin(event)
        elif kind in _KINDS:  # stored by an earlier version of Baton
            assert self._item is not None
            self._item.add(event["delta"], event.get("logprobs", []))
        elif kind == _ITEM_DONE:
            return self._item_done(event, line)
        elif kind in _REPEATING:
            if _REPEATING[kind][0] in event:
                return line
            return msgspec.json.encode({**event, **self._end()[kind]})
        elif isinstance(event.get("response"), int | list):
            response = {**applied(event["response"], self._created), "output": self._output}
            return msgspec.json.encode({**event, "response": response})
        return line

    def _begin(self, event: Event) -> None:
        item = self._item = item_of(event["item"])
        self._ended = {}
        place = {"item_id": item.body["id"], "output_index": event["output_index"]}
        if item.delta_type != _KINDS[2]:
            place["content_index"] = 0
        head = msgspec.json.encode({"type": item.delta_type, "sequence_number": 0})
        self._before_number = head.removesuffix(b"0}")
        self._after_number = b"," + msgspec.json.encode(place)[1:-1] + b',"delta":'
        self._after_text = b',"logprobs":' if item.delta_type == _KINDS[0] else b""

    def _end(self) -> dict[str, Body]:
        assert self._item is not None
        if not self._ended:
            self._ended = dict(self._item.end("in_progress"))
        return self._ended

    def _item_done(self, event: Event, line: Line) -> bytes:
        self._end()
        assert self._item is not None
        if "type" in event["item"]:
            self._output.append(event["item"])
            return line
        body = self._item.body | {"status": event["item"]["status"]}
        self._output.append(body)
        return msgspec.json.encode({**event, "item": body})


def _listed(logprobs: bytes) -> list[Any]:
    return msgspec.json.decode(logprobs, type=list[msgspec.Raw])

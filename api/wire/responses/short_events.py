"""The events of a response without what whoever reads them from the first on knows already. Pure.

So they are kept, in memory, in PostgreSQL and in Redis: each text is there once. An event is a line of bytes:

- a delta is its text as JSON, and after a tab the log probabilities of its tokens, if it has some;
- any other event is a JSON object. The response in it is told by what differs from the response as it was created
  (api/wire/differences.py), without the output. At the end of an item, what its deltas have said is left out.

Events that an older Baton has written are whole: they are passed on as they are.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from api.wire.differences import applied, difference
from api.wire.responses.events import LAST, Body, Event, Item, item_of

Line = bytes

_KINDS = ("response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta")
_REPEATING = {
    "response.output_text.done": ("text", "logprobs"),
    "response.reasoning_text.done": ("text",),
    "response.function_call_arguments.done": ("name", "arguments"),
    "response.content_part.done": ("part",),
}
"""Events at the end of an item, and their fields that its deltas have told."""
LARGE_BYTES = 256 << 10
"""Of a response as it was created: with more, the events that repeat it are to be written in a thread. Less costs small
ones the way there and back; more lets other requests wait longer for each such event.
"""
_DELTA, _OBJECT = b'"', b"{"
"""How lines begin."""
_TAB = b"\t"
"""Which JSON has in no text."""
_ITEM_DONE = "response.output_item.done"


def shortened(event: Event, created: Body) -> Line:
    """`created`: the response as it was created, without output."""
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
    """Whether no event follows this one."""
    return line.startswith(_OBJECT) and msgspec.json.decode(line, type=_Typed).type in LAST


def whole(lines: Iterable[Line], created: Body) -> list[bytes]:
    """All events of a response, from the first on, as their clients see them: JSON."""
    retelling = Retelling(created)
    return [retelling.told(line) for line in lines]


class Retelling:
    """Gives the events of a response in full, in their order, from the first on."""

    def __init__(self, created: Body) -> None:
        self._created = created
        self._is_large = len(msgspec.json.encode(created)) > LARGE_BYTES
        self._number = 0
        """Of the next event."""
        self._item: Item | None = None
        self._ended: dict[str, Body] = {}
        """What the events at the end of the item say, by their type."""
        self._output: list[Body] = []
        self._before_number = self._after_number = self._after_text = b""
        """The parts of a delta of the item that are always the same."""

    def told(self, line: Line) -> bytes:
        """The next event as JSON."""
        whole = self._delta(line) if line.startswith(_DELTA) else self._other(line)
        self._number += 1
        return whole

    def is_long(self, line: Line) -> bool:
        """Whether the event repeats a response that is large: then `told` belongs into a thread."""
        return self._is_large and line.startswith(_OBJECT) and b'"response":' in line

    def _delta(self, line: Line) -> bytes:
        assert self._item is not None
        text, _, logprobs = line.partition(_TAB)
        self._item.add(msgspec.json.decode(text, type=str), _listed(logprobs) if logprobs else [])
        told = b"%b%d%b%b" % (self._before_number, self._number, self._after_number, text)
        if not self._after_text:
            return told + b"}"
        return b"%b%b%b}" % (told, self._after_text, logprobs or b"[]")

    def _other(self, line: Line) -> bytes:
        event: Event = msgspec.json.decode(line)
        kind = event["type"]
        if kind == "response.output_item.added":
            self._begin(event)
        elif kind in _KINDS:  # an older Baton's
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

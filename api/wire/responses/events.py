"""The chunks of a chat completion's stream as OpenAI's Responses events, which are numbered from 0 on.

The order of the events is:
1. `created`; for a response in the background, `queued`; `in_progress`.
2. For each item of the output: `output_item.added`, the events of its part with its deltas, `output_item.done`.
3. One of `completed`, `incomplete` and `failed`. No event follows it.

short_events.py stores the events. A new kind of delta, or an event that repeats its deltas, has a short form there.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, Protocol

import msgspec

from api.wire.responses.tools import calls_by_name
from api.wire.safety.moderation_results import response_moderation

Event = dict[str, Any]
Body = dict[str, Any]
"""A response, an item or a chunk, as a JSON object."""

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The reason why a response is incomplete, by the finish reason of the chat completion."""
LAST = ("response.completed", "response.incomplete", "response.failed")
"""Types of the last event of a response."""
_NO_NUMBER = -1
"""Number of a tool call that was restored from events. No chunk continues such a call."""


class ResponseWriter:
    """Makes the events of a response, and updates the response itself. A client that does not stream gets that response
    in the end.
    """

    def __init__(self, response: Body, new_id: Callable[[str], str]) -> None:
        """`new_id` makes the id of an item from the prefix of the id."""
        self.response = response
        self._new_id = new_id
        self._calls = calls_by_name(response.get("tools") or ())
        self._item: Item | None = None
        """The item that is being generated. None between items."""
        self._finish_reason: str | None = None
        self._next = 0
        self.has_begun = False

    @classmethod
    def restored(cls, response: Body, events: Iterable[Event], new_id: Callable[[str], str]) -> "ResponseWriter":
        """A writer in the state of the writer that made `events`. The usage of the response is not restored, because
        only the last event of a response contains it.
        """
        writer = cls(response, new_id)
        for event in events:
            writer._restore(event)
        return writer

    def queue(self) -> list[Event]:
        """The events of a response in the background that waits to be generated."""
        self.response["status"] = "queued"
        return [self._state("created"), self._state("queued")]

    def begin(self) -> list[Event]:
        self.response["status"], self.has_begun = "in_progress", True
        return [*([] if self._next else [self._state("created")]), self._state("in_progress")]

    def take(self, chunk: Body) -> list[Event]:
        """The events for one chunk of a chat completion that has one choice. Nothing of the choice counts after its
        finish reason.
        """
        if usage := chunk.get("usage"):
            self.response["usage"] = usage_of(usage)
        if moderation := chunk.get("moderation"):
            self.response["moderation"] = response_moderation(moderation)
        events: list[Event] = []
        for choice in chunk.get("choices", ()) if self._finish_reason is None else ():
            delta = choice.get("delta") or {}
            if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
                events += self._go_on_with(_Reasoning) + self._grown(reasoning, [])
            if content := delta.get("content"):
                events += self._go_on_with(_Message) + self._grown(content, _logprobs(choice))
            for call in delta.get("tool_calls") or ():
                events += self._call(call)
            self._finish_reason = choice.get("finish_reason")
        return events

    def cut_off(self) -> None:
        """Makes `end` report a response that has reached its limit of tokens."""
        self._finish_reason = "length"

    def end(self, completed_at: int) -> list[Event]:
        """The events after the last chunk. A response without a finish reason fails."""
        if self._finish_reason is None:
            return self.fail("the generation ended before the answer was complete")
        reason = _INCOMPLETE.get(self._finish_reason)
        events = self._close("incomplete" if reason else "completed")
        if reason:
            self.response["incomplete_details"] = {"reason": reason}
            return [*events, self._terminal("incomplete")]
        self.response["completed_at"] = completed_at
        return [*events, self._terminal("completed")]

    def fail(self, message: str, code: str = "server_error") -> list[Event]:
        """The events of a response that fails. Its output stays, and is marked incomplete. `code` is one of OpenAI's
        ResponseErrorCode.
        """
        events = self._close("incomplete")
        self.response["error"] = {"code": code, "message": message}
        return [*events, self._terminal("failed")]

    def cancel(self) -> list[Event]:
        """The events of a response that its client cancels. OpenAI has no event `cancelled`: `incomplete` is sent."""
        events = self._close("incomplete")
        self.response["status"] = "cancelled"
        return [*events, self._state("incomplete")]

    def _restore(self, event: Event) -> None:
        self._next = event["sequence_number"] + 1
        match event["type"].removeprefix("response.").split("."):
            case ["queued" | "in_progress" as status]:
                self.response["status"] = status
            case ["output_item", "added"]:
                self._item = item_of(event["item"])
                self.response["output"].append(self._item.body)
            case ["output_text" | "reasoning_text" | "function_call_arguments", "delta"]:
                assert self._item is not None
                self._item.add(event["delta"], event.get("logprobs", []))
            case ["output_item", "done"]:
                self.response["output"][event["output_index"]] = event["item"]
                self._item = None

    def _call(self, call: Body) -> list[Event]:
        """The events of one piece of a tool call. A piece begins a new item if its number differs from the number of
        the call that is being generated, or if no call is being generated.
        """
        function, events = call.get("function") or {}, []
        current = self._item
        if not isinstance(current, _FunctionCall) or current.number != call.get("index", 0):
            events += self._close("completed")
            call_id = call.get("id") or self._new_id("call")
            name = function.get("name") or ""
            shown = self._calls.get(name) or {"name": name}
            events += self._open(_FunctionCall(self._new_id("fc"), call.get("index", 0), call_id, shown))
        return events + self._grown(function.get("arguments") or "", [])

    def _go_on_with(self, kind: type["_Message"] | type["_Reasoning"]) -> list[Event]:
        if isinstance(self._item, kind):
            return []
        return self._close("completed") + self._open(kind(self._new_id(kind.prefix)))

    def _open(self, item: "Item") -> list[Event]:
        self._item = item
        self.response["output"].append(item.body)
        added = self._event("response.output_item.added", output_index=self._index, item=deepcopy(item.body))
        return [added, *(self._event(name, **self._place, **values) for name, values in item.begin())]

    def _grown(self, text: str, logprobs: list[Body]) -> list[Event]:
        assert self._item is not None
        self._item.add(text, logprobs)
        return [self._event(name, **self._place, **values) for name, values in self._item.delta(text, logprobs)]

    def _close(self, status: str) -> list[Event]:
        item = self._item
        if item is None:
            return []
        events = [self._event(name, **self._place, **values) for name, values in item.end(status)]
        events.append(self._event("response.output_item.done", output_index=self._index, item=item.body))
        self._item = None
        return events

    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    @property
    def _place(self) -> Body:
        assert self._item is not None
        return {"item_id": self._item.body["id"], "output_index": self._index}

    def _terminal(self, status: str) -> Event:
        self.response["status"] = status
        return self._state(status)

    def _state(self, name: str) -> Event:
        """An event with the response in it. The event may share the items of the response: this method is called only
        while no item is being generated, so that no item changes any more.
        """
        return self._event(f"response.{name}", response={**self.response, "output": [*self.response["output"]]})

    def _event(self, kind: str, **values: Any) -> Event:
        event = {"type": kind, "sequence_number": self._next, **values}
        self._next += 1
        return event


Named = tuple[str, Body]
"""The type of an event, and the fields of the event except its number and its place."""


class Item(Protocol):
    """An item that is being generated."""

    body: Body
    delta_type: str
    """Type of the events that add text to the item."""

    def begin(self) -> list[Named]: ...

    def add(self, text: str, logprobs: list[Any]) -> None: ...

    def delta(self, text: str, logprobs: list[Any]) -> list[Named]:
        """The events for a text that was added."""
        ...

    def end(self, status: str) -> list[Named]: ...


class _Message:
    prefix = "msg"
    delta_type = "response.output_text.delta"

    def __init__(self, item_id: str) -> None:
        self.body: Body = {
            "id": item_id,
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        self._texts: list[str] = []
        self._logprobs: list[Any] = []

    def begin(self) -> list[Named]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [("response.content_part.added", {"content_index": 0, "part": part})]

    def add(self, text: str, logprobs: list[Any]) -> None:
        self._texts.append(text)
        self._logprobs += logprobs

    def delta(self, text: str, logprobs: list[Any]) -> list[Named]:
        return [(self.delta_type, {"content_index": 0, "delta": text, "logprobs": logprobs})]

    def end(self, status: str) -> list[Named]:
        text, logprobs = "".join(self._texts), self._logprobs
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        self.body["content"].append(part)
        self.body["status"] = status
        return [
            ("response.output_text.done", {"content_index": 0, "text": text, "logprobs": logprobs}),
            ("response.content_part.done", {"content_index": 0, "part": part}),
        ]


class _Reasoning:
    prefix = "rs"
    delta_type = "response.reasoning_text.delta"

    def __init__(self, item_id: str) -> None:
        self.body: Body = {"id": item_id, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
        self._texts: list[str] = []

    def begin(self) -> list[Named]:
        return [("response.content_part.added", {"content_index": 0, "part": {"type": "reasoning_text", "text": ""}})]

    def add(self, text: str, logprobs: list[Any]) -> None:
        self._texts.append(text)

    def delta(self, text: str, logprobs: list[Any]) -> list[Named]:
        return [(self.delta_type, {"content_index": 0, "delta": text})]

    def end(self, status: str) -> list[Named]:
        part = {"type": "reasoning_text", "text": "".join(self._texts)}
        self.body["content"].append(part)
        self.body["status"] = status
        return [
            ("response.reasoning_text.done", {"content_index": 0, "text": part["text"]}),
            ("response.content_part.done", {"content_index": 0, "part": part}),
        ]


class _FunctionCall:
    delta_type = "response.function_call_arguments.delta"

    def __init__(self, item_id: str, number: int, call_id: str, named: Body) -> None:
        """`named`: the name of the function, and its namespace if it is in one."""
        self.number = number
        """Number of the call among the tool calls of the chat completion."""
        self.body: Body = {
            "id": item_id,
            "type": "function_call",
            "status": "in_progress",
            "call_id": call_id,
            **named,
            "arguments": "",
        }
        self._texts: list[str] = []

    def begin(self) -> list[Named]:
        return []

    def add(self, text: str, logprobs: list[Any]) -> None:
        self._texts.append(text)

    def delta(self, text: str, logprobs: list[Any]) -> list[Named]:
        return [(self.delta_type, {"delta": text})] if text else []

    def end(self, status: str) -> list[Named]:
        self.body |= {"status": status, "arguments": "".join(self._texts)}
        call = {"name": self.body["name"], "arguments": self.body["arguments"]}
        return [("response.function_call_arguments.done", call)]


def item_of(body: Body) -> Item:
    """The item that an event `output_item.added` announces. `body` is the item in that event."""
    match body["type"]:
        case "message":
            return _Message(body["id"])
        case "reasoning":
            return _Reasoning(body["id"])
        case _:
            named: Body = {name: body[name] for name in ("name", "namespace") if name in body}
            return _FunctionCall(body["id"], _NO_NUMBER, body["call_id"], named)


def usage_of(usage: Body) -> Body:
    """The usage of a chat completion in the shape of a response's."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.get("completion_tokens") or 0,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage["total_tokens"],
    }


def _logprobs(choice: Body) -> list[Any]:
    """One entry for each token, already encoded as JSON. With twenty alternatives for a token, Python objects would
    take ten times as much memory.
    """
    entries = (choice.get("logprobs") or {}).get("content") or []
    return [
        msgspec.Raw(
            msgspec.json.encode(
                {
                    "token": one["token"],
                    "bytes": one.get("bytes") or [],
                    "logprob": one["logprob"],
                    "top_logprobs": [
                        {"token": top["token"], "bytes": top.get("bytes") or [], "logprob": top["logprob"]}
                        for top in one.get("top_logprobs") or []
                    ],
                }
            )
        )
        for one in entries
    ]

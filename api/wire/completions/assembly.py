"""A chat completion, put together from the chunks of its stream."""

from typing import Any

Body = dict[str, Any]
"""A chunk, a chat completion or a part of either, as a JSON object."""

_OF_CHUNK = ("id", "created", "model", "system_fingerprint", "usage", "moderation")
"""Fields that a chunk and a chat completion have in common."""


class Assembly:
    def __init__(self) -> None:
        self._head: Body = {}
        self._choices: dict[int, _Choice] = {}

    def take(self, chunk: Body) -> None:
        self._head.update((name, chunk[name]) for name in _OF_CHUNK if chunk.get(name) is not None)
        for choice in chunk.get("choices", ()):
            self._choices.setdefault(choice["index"], _Choice()).take(choice)

    @property
    def is_whole(self) -> bool:
        """Whether every choice has a finish reason."""
        return bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())

    def completion(self) -> Body:
        choices = [{"index": index, **choice.shown()} for index, choice in sorted(self._choices.items())]
        return {**self._head, "object": "chat.completion", "choices": choices}


class _Choice:
    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._texts: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._calls: dict[int, Body] = {}
        self._logprobs: dict[str, list[Body]] = {}

    def take(self, choice: Body) -> None:
        delta = choice.get("delta") or {}
        for name, pieces in self._texts.items():
            if piece := delta.get(name):
                pieces.append(piece)
        for piece in delta.get("tool_calls") or ():
            self._take_call(piece)
        for name, entries in (choice.get("logprobs") or {}).items():
            if entries is not None:
                self._logprobs.setdefault(name, []).extend(entries)
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self._stop_reason = choice.get("stop_reason", self._stop_reason)

    def _take_call(self, piece: Body) -> None:
        function = piece.get("function") or {}
        call = self._calls.setdefault(piece["index"], {"id": "", "type": "function", "name": "", "arguments": []})
        call["id"] = piece.get("id") or call["id"]
        call["name"] = function.get("name") or call["name"]
        call["arguments"].append(function.get("arguments") or "")

    def shown(self) -> Body:
        content, reasoning = ("".join(self._texts[name]) for name in ("content", "reasoning"))
        has_more = bool(reasoning or self._calls)
        message: Body = {"role": "assistant", "content": None if has_more and not content else content, "refusal": None}
        if self._calls:
            message["tool_calls"] = [_call(call) for _, call in sorted(self._calls.items())]
        if reasoning:
            message["reasoning"] = reasoning
        stop_reason = {} if self._stop_reason is None else {"stop_reason": self._stop_reason}
        logprobs = {"refusal": None, **self._logprobs} if self._logprobs else None
        return {"message": message, "logprobs": logprobs, "finish_reason": self.finish_reason, **stop_reason}


def _call(call: Body) -> Body:
    function = {"name": call["name"], "arguments": "".join(call["arguments"])}
    return {"id": call["id"], "type": call["type"], "function": function}

"""A message and its events in Anthropic's shape, where vLLM's translator gives them another one."""

from typing import Any

import msgspec

CUT = "content_filter"
"""The finish reason of a chat completion that the safety policy has cut off."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""The event that keeps a silent stream alive. It may stand anywhere in a stream, and clients skip it."""
REFUSAL = "refusal"
WINDOW_EXCEEDED = "model_context_window_exceeded"
_EVENT, _DATA = "event: ", "\ndata: "
_PASSED_ON = ("content_block_delta", "content_block_stop", "message_stop")
"""Events that stay as they are."""


def message_id(call: str) -> str:
    """The id of the message that a call has made."""
    return f"msg_{call}"


def stop_reason_of(translated: str | None, finish_reason: str | None, num_tokens: int, max_tokens: int) -> str:
    """Anthropic's stop reason.

    `translated`: by vLLM, which knows only some. `num_tokens`: of the answer, of at most `max_tokens` that the client
    has asked for. An answer that has fewer of them and was too long all the same has filled the context window.
    """
    if finish_reason == CUT:
        return REFUSAL
    if finish_reason == "length":
        return "max_tokens" if num_tokens >= max_tokens else WINDOW_EXCEEDED
    return translated or "end_turn"


def usage_of(usage: Any) -> dict[str, int]:
    """The usage with all four counts, which clients add up."""
    counts = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
    told = usage if isinstance(usage, dict) else {}
    return counts | {name: value for name, value in told.items() if name in counts and value is not None}


class MessageEnding:
    """What the chunks of a chat completion say about its end, which vLLM's events leave out."""

    def __init__(self, call: str, max_tokens: int) -> None:
        self.finish_reason: str | None = None
        self._id = message_id(call)
        self._max_tokens = max_tokens

    def whole(self, message: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        """The message that vLLM has translated, as the client gets it."""
        usage = usage_of(message.get("usage"))
        reason = stop_reason_of(message.get("stop_reason"), finish_reason, usage["output_tokens"], self._max_tokens)
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": message["model"],
            "content": message["content"],
            "stop_reason": reason,
            "stop_sequence": message.get("stop_sequence"),
            "usage": usage,
        }

    def frame(self, frame: str, num_prompt_tokens: int) -> bytes | None:
        """The frame of an event that vLLM has translated, as the client gets it. None for an error, of which vLLM says
        only its text. `num_prompt_tokens`: as far as it is known.
        """
        name, _, data = frame.removeprefix(_EVENT).partition(_DATA)
        if name == "error":
            return None
        if name in _PASSED_ON:
            return frame.encode()
        event = msgspec.json.decode(data)
        if name == "message_start":
            event["message"] |= {"id": self._id, "usage": usage_of({"input_tokens": num_prompt_tokens})}
        elif name == "content_block_start" and event["content_block"]["type"] == "thinking":
            event["content_block"]["signature"] = ""
        elif name == "message_delta":
            usage, delta = usage_of(event.get("usage")), event["delta"]
            event["usage"] = usage
            reason = delta.get("stop_reason")
            delta["stop_reason"] = stop_reason_of(reason, self.finish_reason, usage["output_tokens"], self._max_tokens)
            delta.setdefault("stop_sequence", None)
        return f"{_EVENT}{name}{_DATA}".encode() + msgspec.json.encode(event) + b"\n\n"

"""Reads a streamed answer of the chat, completions or responses API, as its bytes come. Pure.

All three APIs send JSON in `data:` lines. One struct reads the events of all of them, because their fields differ.
"""

from array import array
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cluster.unreadable import UNREADABLE

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longest line of a stream. The last event of the responses API repeats the whole answer in one line. Longer lets an
endpoint take more memory per request; shorter fails long answers.
"""
MAX_GAPS = 200_000
"""Times between tokens that are kept of one answer. More let an endless stream take more memory; fewer leave out the
end of long answers.
"""
_DATA, _DONE = b"data:", b"[DONE]"
_TEXT_DELTAS = frozenset(
    {
        "response.output_text.delta",
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
        "response.refusal.delta",
        "response.function_call_arguments.delta",
    }
)
_ENDS = frozenset({"response.completed", "response.incomplete"})
_FAILURES = frozenset({"response.failed", "error"})

Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class BrokenAnswer(ValueError):
    """What came is not a stream of the API."""


class TooLargeAnswer(ValueError):
    """The answer is larger than the reader takes."""


class _CachedTokens(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _CachedTokens | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: _CachedTokens | None = None


class _Delta(msgspec.Struct, gc=False):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None

    def has_tokens(self) -> bool:
        """A token may have no text, as a part of a letter. A role comes before the first token."""
        if self.reasoning_content or self.reasoning or self.refusal or self.tool_calls:
            return True
        return bool(self.content) or (self.content is not None and self.role is None)


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    def has_tokens(self) -> bool:
        """The last token may have no text, as the end of a sequence."""
        delta = self.delta
        if delta is not None and (delta.content or delta.has_tokens()):
            return True
        return self.text is not None or self.finish_reason is not None


class _Response(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    error: Any = None


class _Event(msgspec.Struct, gc=False):
    id: str | None = None
    type: str = ""
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    message: Any = None
    response: _Response | None = None


class WholeAnswer(msgspec.Struct):
    """The part of an answer that is not streamed that a client reads."""

    usage: _Usage | None = None

    @property
    def num_prompt(self) -> int | None:
        return _num_prompt(self.usage) if self.usage else None


_EVENTS = msgspec.json.Decoder(_Event)


class StreamedAnswer:
    """The tokens of one answer, and when they came. Times are those that `feed` is given."""

    __slots__ = ("_arrived_at", "_rest", "answer_id", "error", "first_at", "gaps_s", "is_complete", "last_at", "usage")

    def __init__(self) -> None:
        self.answer_id = ""
        self.first_at: float | None = None
        self.last_at: float | None = None
        """When the first and the last token came. None before."""
        self.gaps_s = array("f")
        """Times between two arrivals of tokens: the first MAX_GAPS of them."""
        self.is_complete = False
        """Whether the stream has said that the answer is whole."""
        self.error: str | None = None
        self.usage: _Usage | None = None
        self._rest = bytearray()
        """The line that has no end yet. It grows in place: parts may be single bytes."""
        self._arrived_at = -1.0

    @property
    def num_prompt(self) -> int | None:
        return _num_prompt(self.usage) if self.usage else None

    @property
    def num_output(self) -> int | None:
        usage = self.usage
        return None if usage is None else _either(usage.completion_tokens, usage.output_tokens)

    @property
    def num_cached(self) -> int | None:
        details = self.usage and (self.usage.prompt_tokens_details or self.usage.input_tokens_details)
        return details.cached_tokens if details else None

    def feed(self, part: bytes, now: float) -> None:
        """Read the next bytes of the body.

        Raises:
            BrokenAnswer: a line is no JSON of the API.
            TooLargeAnswer: a line is longer than MAX_LINE_BYTES.
        """
        rest = self._rest
        if b"\n" not in part:
            rest += part
            _check_line(rest)
            return
        *lines, last = part.split(b"\n")
        if rest:
            rest += lines[0]
            _check_line(rest)
            lines[0] = bytes(rest)
            rest.clear()
        for line in lines:
            if line.startswith(_DATA):
                self._read(line[len(_DATA) :], now)
        if last:
            rest += last
            _check_line(rest)

    def _read(self, data: bytes, now: float) -> None:
        try:
            event = _EVENTS.decode(data)
        except UNREADABLE as error:
            self._read_no_event(data.strip(), error)
            return
        for choice in event.choices:
            if choice.has_tokens():
                self._token(now)
            if choice.finish_reason:
                self.is_complete = True
        if event.usage is not None:
            self.usage = event.usage
        if event.id is not None:
            self.answer_id = event.id
        if event.type:
            self._read_typed(event, now)
        elif event.error is not None:
            self.error = str(event.error)

    def _read_no_event(self, data: bytes, error: Exception) -> None:
        if data == _DONE:
            self.is_complete = True
        elif data:
            raise BrokenAnswer(f"{error}: {data[:80]!r}") from error

    def _read_typed(self, event: _Event, now: float) -> None:
        """An event of the responses API."""
        if event.type in _TEXT_DELTAS:
            self._token(now)
        elif event.type in _ENDS:
            self.is_complete = True
            self.usage = event.response.usage if event.response else None
        elif event.type in _FAILURES:
            failure = event.response.error if event.response else event.error or event.message
            self.error = str(failure or event.type)

    def _token(self, now: float) -> None:
        if self.first_at is None:
            self.first_at = now
        elif now > self._arrived_at and len(self.gaps_s) < MAX_GAPS:
            self.gaps_s.append(now - self._arrived_at)
        self._arrived_at = self.last_at = now


def _check_line(line: bytearray) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise TooLargeAnswer(f"a line has more than {MAX_LINE_BYTES} bytes")


def _num_prompt(usage: _Usage) -> int | None:
    return _either(usage.prompt_tokens, usage.input_tokens)


def _either(one: int | None, other: int | None) -> int | None:
    return other if one is None else one

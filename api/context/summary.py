"""Writes summaries of conversations with the model."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from api.context.prompt_notes import spoken, text_of
from api.context.token_counter import TokenCounter
from api.context.turn_boundaries import Item
from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.wire.responses.events import usage_of
from api.wire.slo import tier_of
from cluster.errors import ServingError

PROMPT_TOKENS = 400
"""Tokens that the request around a transcript may take. Lower makes prompts that do not fit; higher makes more
requests.
"""
MIN_ROOM = 256
"""Tokens that a transcript has at least, even in a small window. Lower makes very many requests; higher makes prompts
that do not fit a small window.
"""
MAX_TRANSCRIPTS = 4
"""Requests for a summary that may cover only a part of the items. Fewer covers less; more occupies workers for longer.
"""

_TASK = (
    "You keep the notes of a conversation between a user and an assistant. It will be continued by somebody who has "
    "nothing but your notes."
)
_ORDER = (
    "Write the notes anew, with what is new, in at most {words} words: what the user wants, facts, names, numbers, "
    "decisions, results, and what is still open. Write in the language of the conversation, and nothing but the notes."
)


Usage = dict[str, Any]
"""The token counts of a response, as the API shows them."""


class Style(NamedTuple):
    """How a summary is written."""

    model: str
    window: int
    max_tokens: int
    """The most tokens of the summary."""
    instructions: str | None = None
    """The instructions of the assistant in the conversation."""


class Written(NamedTuple):
    """A summary as the model has written it."""

    text: str
    covers: int
    """The number of items that the summary covers."""
    usage: Usage
    """The sum over all requests for the summary."""


class _Transcript(NamedTuple):
    text: str
    end: int
    """The number of items up to the end of the transcript."""


class Summarizer:
    def __init__(self, frontend: Frontend, counter: TokenCounter) -> None:
        self._frontend = frontend
        self._counter = counter

    async def extended(
        self,
        style: Style,
        summary: str | None,
        items: Sequence[Item],
        call: Call,
        stops: Sequence[int] = (),
    ) -> Written:
        """A summary of an earlier summary and of these items. `stops`: the numbers of items that the summary may cover
        if all items need more than MAX_TRANSCRIPTS requests. If even the lowest number needs more, the middle of the
        items is left out. `call`: its client is charged for all requests, which are in its SLO class. Raises
        ServingError.
        """
        usages: list[Usage] = []
        transcripts, covers = await self._transcripts(style, items), len(items)
        if stops and len(transcripts) > MAX_TRANSCRIPTS:
            end = transcripts[MAX_TRANSCRIPTS - 1].end
            covers = max((stop for stop in stops if stop <= end), default=min(stops))
            transcripts = _without_middle(await self._transcripts(style, items[:covers]))
        for transcript in transcripts:
            answer = await self._requested(style, summary, transcript.text, call)
            summary = (answer["choices"][0]["message"].get("content") or "").strip()
            if not summary:
                raise ServingError("the model wrote no summary")
            usages.append(usage_of(answer["usage"]))
        return Written(summary or "", covers, _sum(usages))

    async def _requested(self, style: Style, summary: str | None, transcript: str, call: Call) -> dict[str, Any]:
        instructions = f"The assistant's instructions are:\n{style.instructions}\n\n" if style.instructions else ""
        before = f"The notes so far:\n{summary}\n\n" if summary else ""
        order = _ORDER.format(words=max(20, style.max_tokens // 2))
        body = {
            "model": style.model,
            "messages": [
                {"role": "system", "content": _TASK},
                {"role": "user", "content": f"{instructions}{before}What was said since:\n{transcript}\n{order}"},
            ],
            "max_completion_tokens": style.max_tokens,
            "service_tier": tier_of(call.terms.slo_class),
            "chat_template_kwargs": {"enable_thinking": False},  # a summary needs no reasoning
        }
        own = call.again()
        own.is_own = True
        answer = await self._frontend.chat_completion(body, own)
        assert isinstance(answer, dict)
        return answer

    async def _transcripts(self, style: Style, items: Sequence[Item]) -> list[_Transcript]:
        """The items as transcripts, each as long as the window allows."""
        (instructions,) = await self._counter.texts([style.instructions or ""])
        room = max(MIN_ROOM, style.window - 2 * style.max_tokens - PROMPT_TOKENS - instructions)
        tokens = await self._counter.items(items)
        lines = [_line(item, number, room) for item, number in zip(items, tokens, strict=True)]
        return list(_packed(lines, tokens, room)) or [_Transcript("", 0)]


def _line(item: Item, tokens: int, room: int) -> str:
    text = text_of(item)
    fitting = room // (2 if text.isascii() else 8)  # characters, whatever the tokenizer
    return spoken(item, len(text) if tokens <= room else fitting)


def _packed(lines: Sequence[str], tokens: Sequence[int], room: int) -> Iterator[_Transcript]:
    packed, used = "", 0
    for at, (line, number) in enumerate(zip(lines, tokens, strict=True)):
        if packed and used + min(number, room) > room:
            yield _Transcript(packed, at)
            packed, used = "", 0
        packed, used = packed + line, used + min(number, room)
    if packed:
        yield _Transcript(packed, len(lines))


def _without_middle(transcripts: list[_Transcript]) -> list[_Transcript]:
    half = MAX_TRANSCRIPTS // 2
    return transcripts if len(transcripts) <= MAX_TRANSCRIPTS else transcripts[:half] + transcripts[-half:]


def _sum(usages: Sequence[Usage]) -> Usage:
    return {
        name: _sum([usage[name] for usage in usages])
        if isinstance(value, dict)
        else sum(usage[name] for usage in usages)
        for name, value in usages[0].items()
    }

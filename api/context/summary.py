"""Summaries of what was said, by a model."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from api.context.prompt_notes import spoken, text_of
from api.context.token_counter import TokenCounter
from api.context.turn_boundaries import Item
from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.wire.responses.events import usage_of
from api.wire.slo import slo_class_of
from cluster.errors import ServingError

PROMPT_TOKENS = 400
"""More than the request around a transcript takes."""
MIN_ROOM = 256
"""Tokens of a transcript, in a window however small."""
MAX_TRANSCRIPTS = 4
"""Of a summary that may cover less than all."""

_TASK = (
    "You keep the notes of a conversation between a user and an assistant. It will be continued by somebody who has "
    "nothing but your notes."
)
_ORDER = (
    "Write the notes anew, with what is new, in at most {words} words: what the user wants, facts, names, numbers, "
    "decisions, results, and what is still open. Write in the language of the conversation, and nothing but the notes."
)


Usage = dict[str, Any]
"""As a response has it."""


class Style(NamedTuple):
    """How summaries are written."""

    kv_tenant: str
    """Whose KV blocks they may share."""
    model: str
    window: int
    max_tokens: int
    tier: str
    """OpenAI's `service_tier`."""
    instructions: str | None = None
    """That the conversation was held under."""


class Written(NamedTuple):
    text: str
    covers: int
    """How many of the items it tells of."""
    usage: Usage
    """Of all chat completions that it took."""


class _Transcript(NamedTuple):
    text: str
    end: int
    """How many items there are up to its end."""


class Summarizer:
    def __init__(self, frontend: Frontend, counter: TokenCounter) -> None:
        self._frontend = frontend
        self._counter = counter

    async def extended(
        self, style: Style, summary: str | None, items: Sequence[Item], stops: Sequence[int] = ()
    ) -> Written:
        """The summary, with what these items say. `stops`: how many of them it may cover, if all are many; where the
        fewest are still many, it tells nothing of their middle. Raises ServingError.
        """
        usages: list[Usage] = []
        transcripts, covers = await self._transcripts(style, items), len(items)
        if stops and len(transcripts) > MAX_TRANSCRIPTS:
            end = transcripts[MAX_TRANSCRIPTS - 1].end
            covers = max((stop for stop in stops if stop <= end), default=min(stops))
            transcripts = _without_middle(await self._transcripts(style, items[:covers]))
        for transcript in transcripts:
            answer = await self._asked(style, summary, transcript.text)
            summary = (answer["choices"][0]["message"].get("content") or "").strip()
            if not summary:
                raise ServingError("the model wrote no summary")
            usages.append(usage_of(answer["usage"]))
        return Written(summary or "", covers, _sum(usages))

    async def _asked(self, style: Style, summary: str | None, transcript: str) -> dict[str, Any]:
        told = f"The assistant's instructions are:\n{style.instructions}\n\n" if style.instructions else ""
        before = f"The notes so far:\n{summary}\n\n" if summary else ""
        order = _ORDER.format(words=max(20, style.max_tokens // 2))
        body = {
            "model": style.model,
            "messages": [
                {"role": "system", "content": _TASK},
                {"role": "user", "content": f"{told}{before}What was said since:\n{transcript}\n{order}"},
            ],
            "max_completion_tokens": style.max_tokens,
            "service_tier": style.tier,
            "chat_template_kwargs": {"enable_thinking": False},  # of templates that know it: notes take no thought
        }
        answer = await self._frontend.chat_completion(body, Call(tenant=style.kv_tenant, slo_class=slo_class_of(body)))
        assert isinstance(answer, dict)
        return answer

    async def _transcripts(self, style: Style, items: Sequence[Item]) -> list[_Transcript]:
        """Each as long as the window allows."""
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

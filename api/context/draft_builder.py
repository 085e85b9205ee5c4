"""Builds the draft of a prompt from a conversation and its plan, and shrinks the draft until it fits the window."""

import json
from collections.abc import Sequence
from typing import Any

from api.context.draft import Draft
from api.context.plan import Budget, Measured, SummaryPlace, budget_of, plan
from api.context.prompt_notes import memory_note, user_message
from api.context.token_counter import TokenCounter, most_tokens, most_tokens_of_text
from api.context.turn_boundaries import Item, is_asked, num_system, turn_starts
from api.frontend.checking_thread import in_checking_thread
from api.frontend.frontend import Frontend
from api.state.postgres.stores.history import History, StoredSummary
from api.wire.responses.as_chat import chat_body, num_parts
from api.wire.responses.request import ResponseRequest
from cluster.config.context import ContextConfig
from cluster.errors import InvalidRequest

TEMPLATE_TOKENS = 1024
"""Tokens that a chat template may put around a whole chat. Lower sends prompts that do not fit; higher counts more
prompts exactly, which costs time.
"""
EXACT_FROM = 0.8
"""The share of the limit from which a prompt is counted exactly even if no item is left out. Lower costs more time;
higher sends prompts that do not fit when the estimate is wrong.
"""

MANY_PARTS = 5000
"""Items and their parts above which a thread makes a chat of them, in number: 5,000 take 3 ms. Lower costs short
prompts a switch of threads; higher holds up the event loop for longer.
"""


class DraftBuilder:
    def __init__(self, frontend: Frontend, counter: TokenCounter, config: ContextConfig) -> None:
        self._frontend = frontend
        self._counter = counter
        self._config = config
        self._windows: dict[str, int] = {}
        """The context window of each served model, in tokens."""

    async def window(self, model: str) -> int:
        """The context window of a model, in tokens. For a model that is not served, the window of another model: the
        request is refused later, when its prompt is rendered.
        """
        if model not in self._windows:
            self._windows |= {card["id"]: card["max_model_len"] for card in await self._frontend.models()}
        return self._windows.get(model) or max(self._windows.values())

    def surely_fits(self, request: ResponseRequest, items: Sequence[Item], window: int) -> bool:
        """Whether the items fit for any tokenizer, so that no token need be counted."""
        budget = self._budget_with(request, window, system=0)
        system = request.body.get("instructions", "") + json.dumps(request.body.get("tools", ()))
        return TEMPLATE_TOKENS + most_tokens_of_text(system) + sum(map(most_tokens, items)) <= budget.high

    async def budget(self, request: ResponseRequest, items: Sequence[Item], window: int) -> Budget:
        """Raises InvalidRequest if the system prompt has more than its share of the window."""
        system = await self.num_tokens(request, [*items[: num_system(items)], user_message("")])
        answer = request.body.get("max_output_tokens")
        most = int(self._config.system_share * budget_of(self._config, window, answer, 0).limit)
        if system > most:
            raise InvalidRequest(
                f"instructions, leading system messages and tools have {system} tokens, and may have at most {most} of "
                f"the {window} tokens of the model's context window",
                "instructions",
                "context_length_exceeded",
            )
        return self._budget_with(request, window, system)

    async def draft(self, history: History, budget: Budget) -> Draft:
        by_id = {item["id"]: item for item in history.items}
        notes = {
            message: memory_note(by_id[item] for item in remembered if item in by_id)
            for message, remembered in history.memories.items()
        }
        usable = usable_summaries(history)
        summaries = [SummaryPlace(one.coverage.number, one.after) for one in usable]
        tokens = await self._tokens(history.items, notes)
        measured = Measured(tokens, list(map(is_asked, history.items)), turn_starts(history.items), summaries)
        chosen = plan(measured, budget)
        text = next((one.text for one in usable if _is(one, chosen.summary)), None)
        covered = chosen.summary.covers if chosen.summary else measured.first
        return Draft(history.items, measured, chosen.cut, covered, text, notes)

    async def shrunk(self, request: ResponseRequest, draft: Draft, budget: Budget) -> tuple[Draft, int | None]:
        """The draft, made smaller until it fits, with the exact number of its tokens. None instead of the number if the
        whole conversation is sent and its estimate is far below the limit.

        Raises:
            InvalidRequest: the system prompt and the last turn alone are too long.
        """
        if not draft.leaves_out and sum(draft.measured.tokens) <= min(budget.high, int(EXACT_FROM * budget.limit)):
            return draft, None
        while (number := await self.num_tokens(request, draft.sent())) > budget.limit:
            smaller = draft.smaller(number - budget.limit)
            if smaller is None:
                raise InvalidRequest(
                    f"the last turn and the system prompt have {number} tokens, and the model's context window has "
                    f"room for {budget.limit} beside the answer",
                    "input",
                    "context_length_exceeded",
                )
            draft = smaller
        return draft, number

    async def num_tokens(self, request: ResponseRequest, items: Sequence[Item]) -> int:
        """The exact tokens of a prompt, in the chat template of the model. Raises ServingError."""
        return await self._frontend.count_tokens(await chat_of(request, items))

    def _budget_with(self, request: ResponseRequest, window: int, system: int) -> Budget:
        return budget_of(self._config, window, request.body.get("max_output_tokens"), system, request.compact_threshold)

    async def _tokens(self, items: Sequence[Item], notes: dict[str, str]) -> list[int]:
        """The tokens of each item, with the note in front of it."""
        messages = [user_message(note) | {"id": f"memory of {message}"} for message, note in notes.items()]
        of_notes = dict(zip(notes, await self._counter.in_prompt(messages), strict=True))
        counts = await self._counter.in_prompt(items)
        return [tokens + of_notes.get(item["id"], 0) for item, tokens in zip(items, counts, strict=True)]


async def chat_of(request: ResponseRequest, items: Sequence[Item]) -> dict[str, Any]:
    """The body of a chat completion with these items as its prompt. Raises InvalidRequest."""

    def make() -> dict[str, Any]:
        return chat_body(request.body, request.body["model"], items)

    return await in_checking_thread(make) if num_parts(items) > MANY_PARTS else make()


def usable_summaries(history: History) -> list[StoredSummary]:
    """The summaries whose items are all still in the conversation."""
    if not history.summaries:
        return []
    lasts = {start: history.items[start - 1]["id"] for start in turn_starts(history.items) if start}
    return [summary for summary in history.summaries if lasts.get(summary.coverage.number) == summary.coverage.through]


def newest_summary(history: History) -> StoredSummary | None:
    """The usable summary that covers most items."""
    return max(usable_summaries(history), key=lambda summary: summary.coverage.number, default=None)


def _is(stored: StoredSummary, chosen: SummaryPlace | None) -> bool:
    return chosen is not None and (stored.coverage.number, stored.after) == (chosen.covers, chosen.after)

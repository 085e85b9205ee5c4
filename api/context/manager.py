"""The one entry of this package: the prompt of a turn, from a conversation that may be longer than the model's window.

plan.py chooses the cut, draft_builder.py makes the prompt smaller until it fits, and summaries are written beside.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from api.context.draft import Memory
from api.context.draft_builder import DraftBuilder, newest_summary
from api.context.memory_recall import MemoryRecall, Relevant
from api.context.plan import budget_of
from api.context.prompt_notes import composed
from api.context.summary import Style, Summarizer, Usage
from api.context.summary_jobs import SummaryJobs, TurnContext
from api.context.token_counter import TokenCounter
from api.context.turn_boundaries import Item
from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.state.postgres.stores.history import History
from api.state.postgres.stores.summaries import ContextStore
from api.wire.responses.request import ResponseRequest
from cluster.config.context import ContextConfig
from cluster.errors import InvalidRequest, StateUnavailable

logger = logging.getLogger("baton.context")

COMPACTION_SHARE = 0.1
"""The share of the window that a compaction may take if the config turns summaries off. Lower loses more of the
conversation; higher leaves less room for the next turns.
"""
COMPACTED_WINDOWS = 8
"""The windows of text that one compaction may summarize. More takes longer and occupies workers; fewer refuses longer
histories.
"""
COMPACTED_ITEMS = 2048
"""The items that one compaction may summarize, in number. More takes the tokenizer longer for a conversation of very
many short items, of which a client may send many at a time; fewer refuses longer conversations.
"""


class Fitted(NamedTuple):
    """A prompt that fits the window."""

    items: list[Item]
    """The items that are sent."""
    report: dict[str, Any] | None = None
    """The `context` of the response. None if no item was left out."""
    turn: TurnContext | None = None
    """The input of `after_turn`. None if nothing is left to do after the turn."""


class ContextManager:
    def __init__(
        self,
        frontend: Frontend,
        store: Callable[[], ContextStore],
        config: ContextConfig,
        index: Callable[[], Relevant] | None = None,
    ) -> None:
        """`store` and `index`: return the store and the index, or raise StateUnavailable while PostgreSQL was not
        reached. Without an index, turns are reminded of nothing.
        """
        self.config = config
        self._store = store
        counter = TokenCounter(frontend)
        self._drafts = DraftBuilder(frontend, counter, config)
        self._counter = counter
        self._summarizer = Summarizer(frontend, counter)
        self._recall = MemoryRecall(index, counter) if index is not None and config.memory_share else None
        self._summary_jobs = SummaryJobs(self._drafts, self._summarizer, store)

    async def fit(
        self, tenant: str, request: ResponseRequest, history: History, items: list[Item], response: str | None = None
    ) -> Fitted:
        """The prompt of a turn: the part of its history that fits, and the turn's own `items`. All items have ids.
        `response`: the id of the response; None if the turn is not stored.

        Raises:
            InvalidRequest: the last turn alone is too long, or a compaction comes from another tenant or server.
            StateUnavailable: a compaction cannot be opened, because PostgreSQL is away.
        """
        whole = await self._whole(tenant, history, items)
        if request.truncation != "auto":
            return Fitted(composed(whole.items, 0))
        window = await self._drafts.window(request.body["model"])
        if not whole.memories and self._drafts.surely_fits(request, whole.items, window):
            return Fitted(composed(whole.items, 0))
        budget = await self._drafts.budget(request, whole.items, window)
        draft = await self._drafts.draft(whole, budget)
        if self._recall is not None and request.conversation and draft.leaves_out:
            memory = await self._recall.memory(tenant, request.conversation, items, draft, budget.memory)
            draft = draft._replace(memory=memory)
        draft, num_tokens = await self._drafts.shrunk(request, draft, budget)
        report = None if num_tokens is None or not draft.leaves_out else draft.report(window, num_tokens)
        if response is None:
            return Fitted(draft.sent(), report)
        await self._remember(tenant, response, draft.memory)
        writer = self.config.summary_model or request.body["model"]
        turn = TurnContext(tenant, response, whole, budget, writer, await self._drafts.window(writer))
        return Fitted(draft.sent(), report, turn)

    def after_turn(self, fitted: Fitted, output: Sequence[Item], call: Call) -> None:
        """Write a summary in the background if a next turn will need it. The turn is stored, with this output. `call`:
        of the turn; its client is charged for the summary.
        """
        if (turn := fitted.turn) is not None:
            style = Style(turn.writer, turn.window, turn.budget.summary)
            self._summary_jobs.after(turn, output, style, call)

    async def count(self, tenant: str, request: ResponseRequest, history: History, items: list[Item]) -> int:
        """The tokens of the prompt that a turn would have. Raises ServingError."""
        fitted = await self.fit(tenant, request, history, items)
        return await self._drafts.num_tokens(request, fitted.items)

    async def compact(
        self, tenant: str, request: ResponseRequest, history: History, items: list[Item], call: Call
    ) -> tuple[Item, Usage]:
        """A compaction item of the whole history and `items`, and the tokens that writing it took.

        Raises:
            InvalidRequest: the history is too long, or a compaction comes from another tenant or server.
            ServingError: the summary could not be written.
        """
        whole = await self._whole(tenant, history, items)
        newest = newest_summary(whole)
        covered = newest.coverage.number if newest else 0
        writer = self.config.summary_model or request.body["model"]
        window = await self._drafts.window(writer)
        _check_number(len(whole.items) - covered)
        await self._check_length(whole.items[covered:], COMPACTED_WINDOWS * window)
        max_tokens = budget_of(self.config, window, None, 0).summary or int(COMPACTION_SHARE * window)
        instructions = request.body.get("instructions")
        await self._check_instructions(instructions, window // 2)
        style = Style(writer, window, max_tokens, instructions)
        text = newest.text if newest else None
        written = await self._summarizer.extended(style, text, whole.items[covered:], call)
        return await self._store().compaction(tenant, written.text), written.usage

    async def idle(self) -> None:
        """Wait for the summaries that are being written."""
        await self._summary_jobs.idle()

    async def close(self) -> None:
        await self._summary_jobs.close()

    async def _whole(self, tenant: str, history: History, items: list[Item]) -> History:
        if any(item["type"] == "compaction" for item in items):
            items = await self._store().opened(tenant, items)
        return history._replace(items=[*history.items, *items])

    async def _check_length(self, items: Sequence[Item], most: int) -> None:
        number = sum(await self._counter.items(items))
        if number > most:
            raise InvalidRequest(
                f"the history to compact has {number} tokens, and may have at most {most}",
                "input",
                "context_length_exceeded",
            )

    async def _check_instructions(self, instructions: str | None, most: int) -> None:
        """They stand before each part of the history, so that longer ones leave room for small parts alone."""
        (number,) = await self._counter.texts([instructions or ""])
        if number > most:
            raise InvalidRequest(
                f"the instructions have {number} tokens, and may have at most {most} beside what is compacted",
                "instructions",
                "context_length_exceeded",
            )

    async def _remember(self, tenant: str, response: str, memory: Memory | None) -> None:
        if memory is None:
            return
        try:
            await self._store().add_memory(tenant, response, [item["id"] for item in memory.items])
        except StateUnavailable:
            logger.warning(
                "the memory of response %s is not stored: the next turn will have another prefix, and no prefix hit",
                response,
            )


def _check_number(number: int) -> None:
    """Raises InvalidRequest."""
    if number > COMPACTED_ITEMS:
        raise InvalidRequest(
            f"the history to compact has {number} items, and may have at most {COMPACTED_ITEMS}: compact it in parts, "
            "each with the compaction of the part before it",
            "input",
            "context_length_exceeded",
        )

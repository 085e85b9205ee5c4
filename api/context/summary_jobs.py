"""Background jobs after turns: each writes a summary of the items that a next prompt will leave out."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from api.context.draft_builder import DraftBuilder, newest_summary
from api.context.plan import Budget, to_summarize
from api.context.summary import Style, Summarizer
from api.context.turn_boundaries import Item
from api.frontend.generation import Call
from api.state.postgres.stores.history import History
from api.state.postgres.stores.items import Coverage
from api.state.postgres.stores.summaries import ContextStore
from cluster.errors import QuotaExceeded, RateLimited, ServingError
from cluster.messages.ids import SloClass

logger = logging.getLogger("baton.context")

MAX_JOBS = 4
"""Summaries that a replica writes at a time, one of each tenant. A conversation that finds no room gets its summary
after a later turn. More competes with turns for workers; fewer leaves more items without a summary.
"""
TIMEOUT_S = 300.0
"""How long writing a summary may take, in seconds. Shorter gives up long summaries of slow models; longer keeps their
places.
"""


class TurnContext(NamedTuple):
    """The input of a summary job."""

    tenant: str
    response: str
    history: History
    """The history of the turn, with the turn's input."""
    budget: Budget
    writer: str
    """The model that writes the summary."""
    window: int
    """The context window of the writer, in tokens."""


class SummaryJobs:
    def __init__(self, drafts: DraftBuilder, summarizer: Summarizer, store: Callable[[], ContextStore]) -> None:
        """`store`: returns the store, or raises StateUnavailable while PostgreSQL was not reached."""
        self._drafts = drafts
        self._summarizer = summarizer
        self._store = store
        self._jobs: dict[str, asyncio.Task[None]] = {}
        """The running job of each tenant."""

    def after(self, turn: TurnContext, output: Sequence[Item], style: Style, call: Call) -> None:
        """Start a job, unless the tenant has one already or MAX_JOBS run. `call`: its client is charged."""
        has_room = turn.tenant not in self._jobs and len(self._jobs) < MAX_JOBS
        if turn.budget.summary and turn.history.items and has_room:
            job = asyncio.create_task(self._summarize(turn, output, style, call.beside(SloClass.BATCH)))
            self._jobs[turn.tenant] = job
            job.add_done_callback(lambda _: self._jobs.pop(turn.tenant))

    async def idle(self) -> None:
        while self._jobs:
            await asyncio.wait(self._jobs.values())

    async def close(self) -> None:
        for job in self._jobs.values():
            job.cancel()
        await self.idle()

    async def _summarize(self, turn: TurnContext, output: Sequence[Item], style: Style, call: Call) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._extend(turn, turn.history._replace(items=[*turn.history.items, *output]), style, call)
        except (RateLimited, QuotaExceeded) as error:
            logger.info("no summary after response %s: its client's limits have no room: %s", turn.response, error)
        except (ServingError, TimeoutError) as error:
            logger.warning("no summary after response %s: %s", turn.response, error or "it was not written in time")
        except Exception:
            logger.exception("no summary after response %s", turn.response)

    async def _extend(self, turn: TurnContext, history: History, style: Style, call: Call) -> None:
        draft = await self._drafts.draft(history, turn.budget)
        number = to_summarize(draft.measured, draft.cut, turn.budget)
        if number is None:
            return
        newest = newest_summary(history)
        covered = newest.coverage.number if newest else draft.measured.first
        text = newest.text if newest else None
        stops = [start - covered for start in draft.measured.starts if covered < start < number] + [number - covered]
        written = await self._summarizer.extended(style, text, history.items[covered:number], call, stops)
        end = covered + written.covers
        coverage = Coverage(history.items[end - 1]["id"], end)
        await self._store().add_summary(turn.tenant, turn.response, coverage, written.text)

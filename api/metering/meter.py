"""Opens an entry of the ledger when a session begins, and closes it with the session's receipt."""

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from api.identity.caller import Caller
from api.metering.closings import Closings
from api.metering.prices import PricedTokens, PriceList
from api.metering.tenant_counts import TenantCounts
from api.metering.usage import rows_of, storable
from api.state.postgres.ledger.entries import Opening, UsageRow, arrival_ms, entry_id
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Outcome
from cluster.messages.scheduler_events import HandoffChecked
from router.session.deadline import now
from router.session.receipt import RequestObserver, RouteReceipt, Terms

CHANCE_BYTES = 10
"""Random bytes of an entry's id."""

Closed = Callable[[list[UsageRow], Outcome], None]
"""Gets the rows of a session that has ended, and how it ended."""


class RecordTaker(Protocol):
    """The part of `UsageRecorder` that the meter needs."""

    def opened(self, opening: Opening) -> None: ...

    def closed(self, rows: list[UsageRow]) -> None: ...

    def withdrawn(self, id: str) -> None: ...


class Meter:
    def __init__(
        self,
        recorder: RecordTaker,
        prices: PriceList | None,
        ingress: str,
        observer: RequestObserver,
        tenants: TenantCounts | None = None,
    ) -> None:
        """`prices`: None if nothing has a price. `observer`: gets what sessions tell. `tenants`: the metrics by tenant,
        if somebody wants them.
        """
        self._tenants = tenants
        self._recorder = recorder
        self._prices = prices
        self._ingress = ingress
        self._observer = observer
        self._closings = Closings()

    @property
    def has_prices(self) -> bool:
        return self._prices is not None

    def most_cost(self, model: str, num_prompt_tokens: int, most_output_tokens: int) -> int:
        """What so many tokens cost at most if they are computed now, in millionths of the currency."""
        if self._prices is None:
            return 0
        priced = self._priced(model, _now_ms())
        return priced.prices.most_micros(num_prompt_tokens, most_output_tokens) if priced else 0

    def opened(
        self,
        caller: Caller,
        request: GenerateRequest,
        terms: Terms,
        *,
        model: str,
        reasoning: Callable[[], int],
        after: Closed,
    ) -> "MeteredRequest":
        """Open the entry of a session. `reasoning`: the number of tokens of the reasoning that the client was given,
        asked when the session has ended. `after`: called once, when it has ended.
        """
        age_s = 0.0 if terms.arrived_at is None else now() - terms.arrived_at
        opening = Opening(
            id=entry_id(_now_ms() - round(age_s * 1000), os.urandom(CHANCE_BYTES)),
            tenant_id=caller.tenant,
            project_id=caller.project,
            key_id=caller.key,
            end_user=storable(caller.end_user),
            model=storable(model),
            request_id=storable(request.request_id),
            http_request=storable(terms.http_request),
            slo_class=terms.slo_class,
            prompt_tokens=len(request.prompt_token_ids),
            ingress=self._ingress,
        )
        entry = _Entry(self._recorder, opening)
        asyncio.get_running_loop().call_soon(entry.open)  # the session begins before that
        return MeteredRequest(
            self._observer,
            lambda receipt: self._closings.add(partial(self._close, entry, reasoning, after, receipt)),
            partial(self._withdraw, opening, after),
        )

    def close_ended(self) -> None:
        """Close the entries of all sessions that have ended, which is done soon anyway."""
        self._closings.run()

    def close(self) -> None:
        """Entries are closed at once from now on."""
        self._closings.end()

    def _close(self, entry: "_Entry", reasoning: Callable[[], int], after: Closed, receipt: RouteReceipt) -> None:
        entry.open()
        opening = entry.opening
        priced = self._priced(opening.model, arrival_ms(opening.id)) if opening.http_request else None
        rows = rows_of(opening, receipt, priced, reasoning())
        if rows:
            self._recorder.closed(rows)
        else:
            self._recorder.withdrawn(opening.id)
        if self._tenants is not None:
            self._tenants.closed(opening.tenant_id, receipt)
        after(rows, receipt.outcome)

    def _withdraw(self, opening: Opening, after: Closed) -> None:
        asyncio.get_running_loop().call_soon(self._recorder.withdrawn, opening.id)
        after([], Outcome.FAILED)

    def _priced(self, model: str, at_ms: int) -> PricedTokens | None:
        return self._prices.of(model, at_ms) if self._prices else None


class _Entry:
    """An entry of the ledger, which is opened once: a moment after the session has begun, or when it is closed."""

    __slots__ = ("_is_open", "_recorder", "opening")

    def __init__(self, recorder: RecordTaker, opening: Opening) -> None:
        self._recorder = recorder
        self.opening = opening
        self._is_open = False

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._recorder.opened(self.opening)


class MeteredRequest:
    """The observer of one session. It must be closed or withdrawn."""

    def __init__(
        self, observer: RequestObserver, close: Callable[[RouteReceipt], None], withdraw: Callable[[], None]
    ) -> None:
        self._observer = observer
        self._close = close
        self.withdraw = withdraw
        """There was no session: the request could not begin."""

    def closed(self, receipt: RouteReceipt) -> None:
        """What this takes comes after what the event loop is at, and the ledger after the end of the answer."""
        self._close(receipt)
        asyncio.get_running_loop().call_soon(self._observer.closed, receipt)

    def verified(self, checked: HandoffChecked) -> None:
        self._observer.verified(checked)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""What one HTTP request may use, and what it has used.

A request has a session for each of its prompts. The first session that begins reserves for all of them, so that either
all prompts are answered or none. The reservation is settled when no session runs any more, with what the rows of the
ledger say: so limits and ledger count the same.

Sessions begin when the limits have granted the request. Where the limits had ample room a moment ago, sessions begin at
once, and their first token waits for the grant: then no request waits for Redis, whose answer comes before an engine's.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from api.identity.caller import Caller
from api.limits.limits import Amounts, Bucket
from api.limits.reservations import Reservation
from api.metering.meter import Meter, MeteredRequest
from api.state.postgres.ledger.entries import UsageRow
from cluster.errors import StateUnavailable
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Outcome
from router.session.receipt import Terms

RETRY_AFTER_S = 5.0
"""The Retry-After of a request whose usage cannot be recorded, in seconds. Longer leaves capacity unused when the
ledger takes records again; shorter brings the request back too early.
"""
_UNSERVED = frozenset({Outcome.REJECTED, Outcome.FAILED})

Tell = Callable[[dict[str, str]], None]
"""Adds headers to the answer of the request."""


class Reserver(Protocol):
    """The part of `Reservations` that a charge needs."""

    def look(self, buckets: tuple[Bucket, ...]) -> None: ...

    def expects_room(self, buckets: tuple[Bucket, ...], asked: Amounts) -> bool: ...

    async def reserve(self, tenant: str, buckets: tuple[Bucket, ...], asked: Amounts) -> Reservation: ...


class Recorder(Protocol):
    """The part of `UsageRecorder` that a charge needs."""

    @property
    def is_full(self) -> bool: ...


class RequestCharge:
    def __init__(
        self,
        caller: Caller,
        buckets: tuple[Bucket, ...],
        *,
        model: str,
        meter: Meter,
        recorder: Recorder,
        reserver: Reserver,
        tell: Tell,
        assumed_output_tokens: int | None = None,
    ) -> None:
        """`buckets`: the limits that the request draws on. `model`: the name under which it is charged.
        `assumed_output_tokens`: what is reserved for each answer at most; None for a request that names a maximum.
        """
        self._caller = caller
        self._buckets = buckets
        self._model = model
        self._meter = meter
        self._recorder = recorder
        self._reserver = reserver
        self._tell = tell
        self._assumed_output_tokens = assumed_output_tokens
        self._expected = Amounts(requests=1)
        """What all prompts may use that were rendered."""
        self._used = Amounts(requests=0)
        self._num_running = 0
        self._reserving: asyncio.Task[Reservation] | None = None
        """Once a session has begun, until no session runs."""

    def again(self) -> "RequestCharge":
        """The charge of another try of the same request."""
        return self._with(self._buckets)

    def beside(self) -> "RequestCharge":
        """The charge of what Baton has the model write for the same client: it draws on the limits of tokens and of
        cost. Limits of requests count what clients send.
        """
        return self._with(tuple(bucket for bucket in self._buckets if not bucket.kind.counts_requests))

    def _with(self, buckets: tuple[Bucket, ...]) -> "RequestCharge":
        return RequestCharge(
            self._caller,
            buckets,
            model=self._model,
            meter=self._meter,
            recorder=self._recorder,
            reserver=self._reserver,
            tell=self._tell,
            assumed_output_tokens=self._assumed_output_tokens,
        )

    def look(self) -> None:
        """Called before any work is done for the request. Raises RateLimited, QuotaExceeded if it is known already that
        a limit has no room for it.
        """
        self._reserver.look(self._buckets)

    def expect(self, num_prompt_tokens: int, most_output_tokens: int, num_sequences: int = 1) -> None:
        """A prompt of the request is rendered. `most_output_tokens`: of all its sequences."""
        if self._assumed_output_tokens is not None:
            most_output_tokens = min(most_output_tokens, num_sequences * self._assumed_output_tokens)
        cost = self._meter.most_cost(self._model, num_prompt_tokens, most_output_tokens) if self._buckets else 0
        before = self._expected
        tokens = before.tokens + num_prompt_tokens + most_output_tokens
        self._expected = Amounts(before.requests, tokens, before.cost + cost)

    @property
    def reserving(self) -> "asyncio.Future[Reservation] | None":
        """What the first token of each session that has begun must wait for. It fails as `begin` does. None if there is
        nothing to reserve, or if it is reserved.
        """
        return None if self._reserving is None or _is_granted(self._reserving) else self._reserving

    async def begin(self, request: GenerateRequest, terms: Terms, reasoning: Callable[[], int]) -> MeteredRequest:
        """Reserve what the request may use, or begin to (`reserving`), and open the entry of a session. Returns the
        observer of the session, which must be closed or withdrawn. `reasoning`: as in `Meter.opened`.

        Raises:
            RateLimited, QuotaExceeded: a limit has no room.
            InvalidRequest: the request is larger than a limit per minute.
            LimitsUnavailable: what is left of a limit is not known now.
            StateUnavailable: usage cannot be recorded now.
        """
        if self._recorder.is_full:
            raise StateUnavailable("the usage of this request could not be recorded now", RETRY_AFTER_S)
        if self._buckets or self._num_running:
            self._meter.close_ended()  # what has ended takes no room from what begins
        self._num_running += 1
        try:
            if self._buckets:
                await self._reserve()
            return self._meter.opened(
                self._caller, request, terms, model=self._model, reasoning=reasoning, after=self._closed
            )
        except BaseException:
            self._leave()
            raise

    async def _reserve(self) -> None:
        """Sessions that begin together share a reservation. It is completed if its session is cancelled meanwhile, so
        that it can be given back.
        """
        if self._reserving is None:
            has_room = self._reserver.expects_room(self._buckets, self._expected)
            self._reserving = asyncio.create_task(self._reserved())
            if has_room:
                self._reserving.add_done_callback(_retrieve)  # a session that ends before its first token does not
                return
        await asyncio.shield(self._reserving)

    async def _reserved(self) -> Reservation:
        reservation = await self._reserver.reserve(self._caller.tenant, self._buckets, self._expected)
        self._tell(reservation.headers)
        return reservation

    def _closed(self, rows: Sequence[UsageRow], outcome: Outcome) -> None:
        """A session is over."""
        tokens = sum(row.prompt_tokens + row.generated_tokens for row in rows)
        is_served = tokens > 0 or outcome not in _UNSERVED
        self._used = Amounts(
            max(self._used.requests, int(is_served)),
            self._used.tokens + tokens,
            self._used.cost + sum(row.cost_micros for row in rows),
        )
        self._leave()

    def _leave(self) -> None:
        self._num_running -= 1
        if self._num_running == 0 and self._reserving is not None:
            reserving, self._reserving = self._reserving, None
            # A prompt that begins later is of the same request, which counts once
            used = self._used._replace(requests=min(self._used.requests, self._expected.requests))
            self._used = Amounts(requests=0)
            self._expected = self._expected._replace(requests=0)
            settle_when_reserved(reserving, used)


def settle_when_reserved(reserving: asyncio.Task[Reservation], used: Amounts) -> None:
    """Settle a reservation, also if whoever asked for it was cancelled before it was made."""
    reserving.add_done_callback(lambda done: _settle(done, used))


def _settle(reserving: asyncio.Task[Reservation], used: Amounts) -> None:
    if _is_granted(reserving):
        reserving.result().settle(used)


def _is_granted(reserving: asyncio.Task[Reservation]) -> bool:
    return reserving.done() and not reserving.cancelled() and reserving.exception() is None


def _retrieve(reserving: asyncio.Task[Reservation]) -> None:
    """Have asyncio not log the error of a task that nobody awaits."""
    if not reserving.cancelled():
        reserving.exception()

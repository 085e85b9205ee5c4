"""One HTTP request reserves once, whatever becomes of its prompts, and is charged what its rows say."""

import asyncio
from typing import Any

import pytest

from api.charging.charge import RequestCharge
from api.identity.caller import Caller
from api.limits.budget import Entry
from api.limits.counters import Room
from api.limits.limits import Amounts, Bucket
from api.limits.reservations import Reservation
from api.metering.meter import Meter
from api.metering.prices import price_list
from api.state.postgres.ledger.entries import Opening, UsageRow
from cluster.config.tenants.limits import Limits
from cluster.errors import RateLimited, StateUnavailable
from cluster.messages.ids import Outcome
from router.session.receipt import RequestObserver, Terms
from tests.expected import present
from tests.unit.api.limits.a_request import buckets
from tests.unit.factories import a_receipt, a_request
from tests.unit.fake_ports import FakeObserver, Gate, loop_rounds
from tests.unit.usage_rows import TENANT, an_attempt

PRICES = price_list(
    b"""
currency: usd
versions:
- {version: v1, valid_from: 2020-01-01, models: {'*': {input: 1_000_000, output: 2_000_000, reasoning: 3_000_000}}}
"""
)
SOME = buckets(key=Limits(requests_per_minute=60))
CALLER = Caller(tenant=TENANT, key="key_1")
CLIENT = Terms(http_request="req_1")
ROUNDS = 5


class FakeReservations:
    """Grants everything, unless there is an error."""

    def __init__(self) -> None:
        self.asked: list[Amounts] = []
        self.settled: list[Amounts] = []
        self.error: Exception | None = None
        self.refused_before: Exception | None = None
        """What an early look finds."""
        self.gate = Gate()
        self.has_room = False
        """Whether requests may begin before they are granted."""

    def expects_room(self, buckets: tuple[Bucket, ...], asked: Amounts) -> bool:
        return self.has_room

    def look(self, buckets: tuple[Bucket, ...]) -> None:
        if self.refused_before is not None and buckets:
            raise self.refused_before

    async def reserve(self, tenant: str, buckets: tuple[Bucket, ...], asked: Amounts) -> Reservation:
        self.asked.append(asked)
        await self.gate.passed()
        if self.error is not None:
            raise self.error
        owner: Any = self
        return Reservation(owner, tenant, Entry("r", 0, buckets, asked), [Room(59, 1000)], False)

    def settle_open(self, reservation: Reservation, actual: Amounts) -> None:
        self.settled.append(actual)


class FakeRecorder:
    def __init__(self) -> None:
        self.is_full = False
        self.openings: list[Opening] = []
        self.rows: list[UsageRow] = []
        self.closings: list[str] = []
        """The ids of entries that have ended without rows."""

    def opened(self, opening: Opening) -> None:
        self.openings.append(opening)

    def closed(self, rows: list[UsageRow]) -> None:
        self.rows += rows

    def withdrawn(self, id: str) -> None:
        self.closings.append(id)


class Books:
    """What a charge writes into."""

    def __init__(self) -> None:
        self.reservations = FakeReservations()
        self._recorder = FakeRecorder()
        self.observer = FakeObserver()
        self.headers: list[dict[str, str]] = []
        self.meter = Meter(self._recorder, PRICES, "i0", self.observer)

    @property
    def recorder(self) -> FakeRecorder:
        """With the entries of all sessions that have ended."""
        self.meter.close_ended()
        return self._recorder

    def charge(self, which: tuple[Bucket, ...] = SOME, assumed_output_tokens: int | None = None) -> RequestCharge:
        return RequestCharge(
            CALLER,
            which,
            model="m",
            meter=self.meter,
            recorder=self.recorder,
            reserver=self.reservations,
            tell=self.headers.append,
            assumed_output_tokens=assumed_output_tokens,
        )

    async def settled(self) -> list[Amounts]:
        self.meter.close_ended()
        await loop_rounds(ROUNDS)
        return self.reservations.settled


@pytest.fixture
def books() -> Books:
    return Books()


async def begun(charge: RequestCharge, number: int = 1, num_reasoning: int = 0) -> list[RequestObserver]:
    for _ in range(number):
        charge.expect(4, 10)
    requests = [a_request(f"r{index}") for index in range(number)]
    return await asyncio.gather(*(charge.begin(request, CLIENT, lambda: num_reasoning) for request in requests))


def end(session: RequestObserver, outcome: Outcome = Outcome.FINISHED, given: int = 3) -> None:
    attempts = (an_attempt(num_delivered=given),) if given or outcome is Outcome.ABORTED else ()
    session.closed(a_receipt(outcome=outcome, attempts=attempts, num_prompt_tokens=4, num_output_tokens=given))


async def test_request_reserves_the_most_that_it_may_use_and_settles_what_it_used(books: Books) -> None:
    (session,) = await begun(books.charge())
    assert books.reservations.asked == [Amounts(1, 14, 34)]
    assert books.headers == [
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
        }
    ]
    assert await books.settled() == []
    end(session)
    assert await books.settled() == [Amounts(1, 7, 10)]
    assert [row.cost_micros for row in books.recorder.rows] == [10]
    assert len(books.observer.receipts) == 1


async def test_reasoning_is_counted_at_the_end_and_costs_what_reasoning_costs(books: Books) -> None:
    (session,) = await begun(books.charge(), num_reasoning=2)
    end(session, Outcome.ABORTED)
    assert await books.settled() == [Amounts(1, 7, 12)]
    assert [(row.reasoning_tokens, row.cost_micros) for row in books.recorder.rows] == [(2, 4 + 1 * 2 + 2 * 3)]


async def test_prompts_of_one_request_share_a_reservation(books: Books) -> None:
    sessions = await begun(books.charge(), 3)
    assert books.reservations.asked == [Amounts(1, 42, 102)]
    assert len(books.headers) == 1
    for session in sessions:
        assert await books.settled() == []
        end(session)
    assert await books.settled() == [Amounts(1, 21, 30)]


async def test_prompt_that_begins_after_the_others_have_ended_is_of_the_same_request(books: Books) -> None:
    charge = books.charge()
    for _ in range(2):
        (session,) = await begun(charge)
        end(session)
    assert [asked.requests for asked in books.reservations.asked] == [1, 0]
    assert [settled.requests for settled in await books.settled()] == [1, 0]


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.FAILED])
async def test_request_that_was_not_served_counts_as_never_sent(books: Books, outcome: Outcome) -> None:
    (session,) = await begun(books.charge())
    end(session, outcome, given=0)
    assert await books.settled() == [Amounts(0, 0, 0)]
    assert (books.recorder.rows, books.recorder.closings) == ([], [opening.id for opening in books.recorder.openings])


async def test_client_that_leaves_pays_for_the_prompt(books: Books) -> None:
    (session,) = await begun(books.charge())
    end(session, Outcome.ABORTED, given=0)
    assert await books.settled() == [Amounts(1, 4, 4)]


async def test_client_that_leaves_while_it_waits_for_a_place_has_sent_a_request(books: Books) -> None:
    (session,) = await begun(books.charge())
    session.closed(a_receipt(outcome=Outcome.ABORTED, num_prompt_tokens=4, num_output_tokens=0))
    assert await books.settled() == [Amounts(1, 0, 0)]
    assert books.recorder.rows == []


async def test_request_that_fails_by_its_clients_fault_pays_for_the_prompt_that_was_computed(books: Books) -> None:
    (session,) = await begun(books.charge())
    attempts = (an_attempt(num_delivered=0, num_generated=0, num_prefill_generated=1),)
    receipt = a_receipt(outcome=Outcome.FAILED, attempts=attempts, num_output_tokens=0, is_owed=True)
    session.closed(receipt)
    assert await books.settled() == [Amounts(1, 4, 4)]


async def test_refused_request_opens_nothing(books: Books) -> None:
    books.reservations.error = RateLimited("no", "requests", 1.0, {})
    with pytest.raises(RateLimited):
        await begun(books.charge())
    assert (books.recorder.openings, await books.settled()) == ([], [])


async def test_client_that_leaves_while_it_reserves_gives_the_reservation_back(books: Books) -> None:
    books.reservations.gate.hold()
    leaving = asyncio.create_task(begun(books.charge()))
    await books.reservations.gate.reached.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    assert await books.settled() == []
    books.reservations.gate.open()
    assert await books.settled() == [Amounts(0, 0, 0)]


async def test_prompt_that_begins_when_another_one_has_just_ended_reserves_anew(books: Books) -> None:
    charge = books.charge()
    (session,) = await begun(charge)
    end(session)
    await begun(charge)
    assert books.reservations.asked == [Amounts(1, 14, 34), Amounts(0, 28, 68)]
    assert books.reservations.settled == [Amounts(1, 7, 10)]


async def test_another_try_reserves_anew(books: Books) -> None:
    charge = books.charge()
    charge.expect(4000, 10)  # too long, as it turns out
    (session,) = await begun(charge.again())
    end(session)
    assert books.reservations.asked == [Amounts(1, 14, 34)]


async def test_request_without_limits_is_recorded_and_reserves_nothing(books: Books) -> None:
    (session,) = await begun(books.charge(()))
    end(session)
    await books.settled()
    assert (books.reservations.asked, len(books.recorder.rows)) == ([], 1)


async def test_request_that_cannot_be_recorded_is_refused(books: Books) -> None:
    books.recorder.is_full = True
    with pytest.raises(StateUnavailable) as refused:
        await begun(books.charge())
    assert refused.value.retry_after_s
    assert (books.reservations.asked, books.recorder.openings) == ([], [])


@pytest.mark.parametrize(
    ("assumed", "reserved"), [(None, 4 + 3 * 131_072), (100, 4 + 3 * 100), (200_000, 4 + 3 * 131_072)]
)
async def test_answers_without_a_maximum_reserve_what_is_assumed(
    books: Books, assumed: int | None, reserved: int
) -> None:
    for charge in (books.charge(assumed_output_tokens=assumed), books.charge(assumed_output_tokens=assumed).again()):
        charge.expect(4, 3 * 131_072, 3)
        end(await charge.begin(a_request("r"), CLIENT, lambda: 0), given=400)
    assert [asked.tokens for asked in books.reservations.asked] == [reserved, reserved]
    assert [used.tokens for used in await books.settled()] == [404, 404]  # also where it is more than was reserved


async def test_session_begins_before_the_grant_where_there_was_ample_room(books: Books) -> None:
    books.reservations.has_room = True
    books.reservations.gate.hold()
    charge = books.charge()
    (session,) = await begun(charge)
    reserving = present(charge.reserving)
    assert (len(books.recorder.openings), books.headers) == (1, [])
    books.reservations.gate.open()
    await reserving
    assert (len(books.headers), charge.reserving) == (1, None)
    end(session)
    assert await books.settled() == [Amounts(1, 7, 10)]


async def test_denial_of_a_request_that_has_begun_reaches_who_waits_and_settles_nothing(books: Books) -> None:
    books.reservations.has_room = True
    books.reservations.error = RateLimited("no", "requests", 1.0, {})
    charge = books.charge()
    (session,) = await begun(charge)
    with pytest.raises(RateLimited):
        await present(charge.reserving)
    end(session, Outcome.REJECTED, given=0)
    assert (await books.settled(), books.headers) == ([], [])


async def test_client_that_leaves_before_the_grant_of_its_request_gives_the_reservation_back(books: Books) -> None:
    books.reservations.has_room = True
    books.reservations.gate.hold()
    (session,) = await begun(books.charge())
    session.closed(a_receipt(outcome=Outcome.REJECTED, num_prompt_tokens=4, num_output_tokens=0))
    assert await books.settled() == []
    books.reservations.gate.open()
    assert await books.settled() == [Amounts(0, 0, 0)]

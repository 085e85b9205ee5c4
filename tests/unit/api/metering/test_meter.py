"""A request has the prices of its arrival, whenever it ends."""

import asyncio
from datetime import UTC, datetime

import pytest

from api.identity.caller import Caller
from api.metering.meter import Closed, Meter, MeteredRequest
from api.metering.prices import price_list
from api.state.postgres.ledger.entries import UsageRow
from router.session.deadline import now
from router.session.receipt import Terms
from tests.unit.api.charging.test_charge import FakeRecorder
from tests.unit.factories import a_receipt, a_request
from tests.unit.fake_ports import FakeObserver, loop_rounds
from tests.unit.usage_rows import TENANT, an_attempt

TWO_DAYS_S = 2 * 86_400.0
A_RECEIPT = a_receipt(attempts=(an_attempt(num_delivered=7),), num_prompt_tokens=1000, num_output_tokens=7)


def opened(meter: Meter, after: Closed = lambda *_: None, terms: Terms = Terms(http_request="req_1")) -> MeteredRequest:  # noqa: B008
    return meter.opened(Caller(tenant=TENANT), a_request("r"), terms, model="m", reasoning=lambda: 0, after=after)


@pytest.mark.parametrize(
    ("age_s", "priced"), [(TWO_DAYS_S, ("old", 1_007)), (0.0, ("new", 2_014))], ids=["before", "after"]
)
async def test_prices_that_change_while_a_request_runs_are_for_later_ones(
    age_s: float, priced: tuple[str, int]
) -> None:
    prices = price_list(
        f"""
currency: usd
versions:
- {{version: old, valid_from: 2020-01-01, models: {{'*': {{input: 1_000_000, output: 1_000_000}}}}}}
- {{version: new, valid_from: {datetime.now(UTC).date()}, models: {{'*': {{input: 2_000_000, output: 2_000_000}}}}}}
""".encode()
    )
    meter = Meter(FakeRecorder(), prices, "i0", FakeObserver())
    told: list[UsageRow] = []
    terms = Terms(http_request="req_1", arrived_at=now() - age_s)
    opened(meter, lambda rows, _: told.extend(rows), terms).closed(A_RECEIPT)
    await loop_rounds(20)
    assert told == []  # what this takes does not delay the end of the answer
    meter.close_ended()
    assert [(row.price_version, row.cost_micros) for row in told] == [priced]
    assert meter.most_cost("m", 1000, 7) == 2_014


async def test_entries_are_closed_soon_after_their_sessions_have_ended() -> None:
    recorder, is_told = FakeRecorder(), asyncio.Event()
    meter = Meter(recorder, None, "i0", FakeObserver())

    def fails(*_: object) -> None:
        raise RuntimeError

    opened(meter, fails).closed(A_RECEIPT)
    opened(meter, lambda *_: is_told.set()).closed(A_RECEIPT)
    await is_told.wait()
    assert len(recorder.rows) == 2


async def test_entry_of_a_session_that_ends_at_once_is_opened_before_it_is_closed_and_once() -> None:
    recorder = FakeRecorder()
    meter = Meter(recorder, None, "i0", FakeObserver())
    opened(meter).closed(A_RECEIPT)
    meter.close_ended()
    assert [row.id for row in recorder.rows] == [opening.id for opening in recorder.openings]
    await loop_rounds(1)
    assert len(recorder.openings) == 1


async def test_entry_of_a_session_that_ends_after_the_close_is_closed_at_once() -> None:
    recorder = FakeRecorder()
    meter = Meter(recorder, None, "i0", FakeObserver())
    early, late = opened(meter), opened(meter)
    early.closed(A_RECEIPT)
    meter.close()
    assert len(recorder.rows) == 1
    late.closed(A_RECEIPT)
    assert len(recorder.rows) == 2

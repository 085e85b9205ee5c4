"""A request has the prices of its arrival, whenever it ends."""

from datetime import UTC, datetime

import pytest

from api.identity.caller import Caller
from api.metering.meter import Meter
from api.metering.prices import price_list
from api.state.postgres.ledger.entries import UsageRow
from router.session.deadline import now
from router.session.receipt import Terms
from tests.unit.api.charging.test_charge import FakeRecorder
from tests.unit.factories import a_receipt, a_request
from tests.unit.fake_ports import FakeObserver, loop_rounds
from tests.unit.usage_rows import TENANT, an_attempt

TWO_DAYS_S = 2 * 86_400.0


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
    request = meter.opened(
        Caller(tenant=TENANT),
        a_request("r"),
        terms,
        model="m",
        reasoning=lambda: 0,
        after=lambda rows, _: told.extend(rows),
    )
    request.closed(a_receipt(attempts=(an_attempt(num_delivered=7),), num_prompt_tokens=1000, num_output_tokens=7))
    assert told == []  # what this takes does not delay the end of the answer
    await loop_rounds(1)
    assert [(row.price_version, row.cost_micros) for row in told] == [priced]
    assert meter.most_cost("m", 1000, 7) == 2_014

"""A limit of each kind, of each scope, on a real Redis: it refuses what shares the scope, and nothing else."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from api.charging.charging import Charging
from api.limits.limits import FIELDS, LimitKind, LimitScope, ScopeKind
from api.limits.reservations import Reservations
from api.metering.meter import Meter
from api.metering.prices import price_list
from api.state.redis import client as redis_client
from api.state.redis.client import RedisClient
from cluster.config.tenants.limits import Limits, LimitsConfig
from cluster.errors import RateLimited
from router.session.receipt import Terms
from tests.unit.api.charging.limited_principal import a_limited_principal
from tests.unit.api.charging.test_charge import FakeRecorder
from tests.unit.factories import a_request
from tests.unit.fake_ports import FakeObserver

PRICES = price_list(
    b"""
currency: usd
versions:
- {version: v1, valid_from: 2020-01-01, models: {'*': {input: 1_000_000, output: 2_000_000}}}
"""
)
PROMPT, ANSWER = 4, 10
ROOM_FOR_ONE = {
    LimitKind.REQUESTS: 1,
    LimitKind.TOKENS: PROMPT + ANSWER,
    LimitKind.CONCURRENT: 1,
    LimitKind.TOKENS_PER_DAY: PROMPT + ANSWER,
    LimitKind.TOKENS_PER_MONTH: PROMPT + ANSWER,
    LimitKind.COST_PER_DAY: PROMPT + 2 * ANSWER,
    LimitKind.COST_PER_MONTH: PROMPT + 2 * ANSWER,
}
PATIENCE_S = 2.0
"""For an answer of Redis: more than a busy machine needs."""

Ids = dict[ScopeKind, str]


@pytest.fixture
async def reservations(redis: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reservations]:
    monkeypatch.setattr(redis_client, "TIMEOUT_S", PATIENCE_S)
    client = RedisClient()
    client.reach(redis)
    made = Reservations(client, LimitsConfig(), 1)
    yield made
    await made.close(PATIENCE_S)
    await client.close()


async def begin(reservations: Reservations, ids: Ids, scope: ScopeKind, limit: Limits) -> None:
    """A request of somebody, who has this limit in one scope and no other one."""
    principal = a_limited_principal(ids, {scope: limit})
    recorder = FakeRecorder()
    charging = Charging(
        LimitsConfig(),
        ids[ScopeKind.MODEL],
        meter=Meter(recorder, PRICES, "i0", FakeObserver()),
        recorder=recorder,
        reserver=reservations,
        hashed=str,
    )
    charge = charging.charge(principal, ids[ScopeKind.END_USER], lambda _: None, names_maximum=True)
    charge.expect(PROMPT, ANSWER)
    await charge.begin(a_request("r"), Terms(http_request="req_1"), lambda: 0)


@pytest.mark.parametrize("kind", LimitKind, ids=FIELDS.get)
@pytest.mark.parametrize("scope", ScopeKind)
async def test_limit_refuses_what_shares_its_scope_and_nothing_else(
    reservations: Reservations, scope: ScopeKind, kind: LimitKind
) -> None:
    limit = Limits(**{FIELDS[kind]: ROOM_FOR_ONE[kind]})
    one = {each: uuid4().hex for each in ScopeKind}
    apart = one | {scope: uuid4().hex}
    sharing = {each: uuid4().hex for each in ScopeKind} | {each: one[each] for each in (scope, ScopeKind.TENANT)}
    await begin(reservations, one, scope, limit)
    with pytest.raises(RateLimited, match=f"of {LimitScope(scope, '')}.*{FIELDS[kind].replace('_', ' ')}"):
        await begin(reservations, sharing, scope, limit)
    await begin(reservations, apart, scope, limit)

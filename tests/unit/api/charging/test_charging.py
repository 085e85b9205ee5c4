"""Each limit of an account or of the config counts for its own scope, and for no other one."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from api.charging.charge import RequestCharge
from api.charging.charging import MOST_REMEMBERED, Charging
from api.identity.principal import Principal
from api.identity.settings import NO_LIMITS
from api.limits.limits import FIELDS, Amounts, Bucket, LimitKind, LimitScope, ScopeKind
from api.limits.reservations import Reservation
from api.metering.meter import Meter
from cluster.config.tenants.limits import LimitDefaults, Limits, LimitsConfig
from cluster.errors import RateLimited
from router.session.receipt import Terms
from tests.unit.api.charging.limited_principal import a_limited_principal
from tests.unit.api.charging.test_charge import FakeRecorder
from tests.unit.factories import a_request
from tests.unit.fake_ports import FakeObserver
from tests.unit.usage_rows import TENANT

MODEL = "m"
IDS = {
    ScopeKind.KEY: "key_1",
    ScopeKind.PROJECT: "proj_1",
    ScopeKind.TENANT: TENANT,
    ScopeKind.END_USER: "u",
    ScopeKind.MODEL: MODEL,
}


class AskedReservations:
    """Keeps what was asked for, and refuses it."""

    def __init__(self) -> None:
        self.tenants: list[str] = []
        self.buckets: list[Bucket] = []

    async def reserve(self, tenant: str, buckets: tuple[Bucket, ...], asked: Amounts) -> Reservation:
        self.tenants.append(tenant)
        self.buckets += buckets
        raise RateLimited("no", "requests", 1.0, {})

    def look(self, buckets: tuple[Bucket, ...]) -> None: ...

    def expects_room(self, buckets: tuple[Bucket, ...], asked: Amounts) -> bool:
        return False

    def capacities(self) -> dict[tuple[LimitScope, LimitKind], int]:
        return {(bucket.scope, bucket.kind): bucket.capacity for bucket in self.buckets}


def a_principal(limits: dict[ScopeKind, Limits]) -> Principal:
    return a_limited_principal(IDS, limits, "key_2", **{"another model": Limits(concurrent_requests=1)})


def defaults_of(limits: dict[ScopeKind, Limits]) -> LimitDefaults:
    named: dict[str, Any] = {kind.value: found for kind, found in limits.items()}
    return LimitDefaults(**named)


def charging_with(
    reserver: AskedReservations,
    recorder: FakeRecorder,
    defaults: LimitDefaults,
    hashed: Callable[[str], str] = str,
) -> Charging:
    return Charging(
        LimitsConfig(defaults=defaults),
        MODEL,
        meter=Meter(recorder, None, "i0", FakeObserver()),
        recorder=recorder,
        reserver=reserver,
        hashed=hashed,
    )


async def asked_by(principal: Principal, defaults: LimitDefaults) -> AskedReservations:
    reserver = AskedReservations()
    charging = charging_with(reserver, FakeRecorder(), defaults)
    charge = charging.charge(principal, IDS[ScopeKind.END_USER], lambda _: None, names_maximum=True)
    with pytest.raises(RateLimited):
        await begin(charge)
    assert reserver.tenants == [TENANT]
    return reserver


async def begin(charge: RequestCharge) -> None:
    charge.expect(4, 10)
    await charge.begin(a_request("r"), Terms(http_request="req_1"), lambda: 0)


def of_all_scopes(first: int) -> dict[ScopeKind, Limits]:
    """Of all kinds, each with a number of its own from `first` on."""
    return {
        scope: Limits(**{field: first + 10 * number + place for place, field in enumerate(FIELDS.values())})
        for number, scope in enumerate(ScopeKind)
    }


def capacities_of(limits: dict[ScopeKind, Limits]) -> dict[tuple[LimitScope, LimitKind], int]:
    return {
        (LimitScope(scope, IDS[scope]), kind): getattr(found, field)
        for scope, found in limits.items()
        for kind, field in FIELDS.items()
    }


async def test_limits_of_accounts_are_those_of_their_scopes() -> None:
    limits = of_all_scopes(1000)
    found = await asked_by(a_principal(limits), LimitDefaults())
    assert found.capacities() == capacities_of(limits)


async def test_defaults_of_the_config_are_those_of_their_scopes() -> None:
    limits = of_all_scopes(1000)
    found = await asked_by(a_principal({}), defaults_of(limits))
    assert found.capacities() == capacities_of(limits)


@pytest.mark.parametrize("scope", ScopeKind)
async def test_limit_of_an_account_replaces_the_default_of_its_scope_alone(scope: ScopeKind) -> None:
    own, defaults = {scope: of_all_scopes(1000)[scope]}, of_all_scopes(2000)
    found = await asked_by(a_principal(own), defaults_of(defaults))
    assert found.capacities() == capacities_of(defaults | own)


async def test_key_whose_limits_have_changed_draws_on_the_new_ones() -> None:
    reserver = AskedReservations()
    charging = charging_with(reserver, FakeRecorder(), LimitDefaults())
    for first in (1000, 1000, 2000, 3000):
        limits = of_all_scopes(first)
        principal = a_principal(limits)
        for end_user in ("", IDS[ScopeKind.END_USER], ""):
            reserver.buckets.clear()
            charge = charging.charge(principal, end_user, lambda _: None, names_maximum=True)
            with pytest.raises(RateLimited):
                await begin(charge)
            of_user = {} if end_user else {ScopeKind.END_USER: NO_LIMITS}
            scopes = {scope: found for scope, found in (limits | of_user).items() if found != NO_LIMITS}
            assert reserver.capacities() == capacities_of(scopes)


def test_limits_of_a_key_are_computed_once_and_of_many_keys_within_a_bound() -> None:
    hashed: list[str] = []

    def noted(text: str) -> str:
        hashed.append(text)
        return text

    charging = charging_with(AskedReservations(), FakeRecorder(), LimitDefaults(), noted)
    principal = a_principal(of_all_scopes(1000))
    principals = [msgspec.structs.replace(principal, key=f"key_{number}") for number in range(MOST_REMEMBERED + 1)]

    def num_computed(some: Sequence[Principal]) -> int:
        hashed.clear()
        for one in some:
            charging.charge(one, "", lambda _: None, names_maximum=True)
        return len(hashed)

    *known, further = principals
    assert num_computed([*known, *known]) == len(known)
    changed = msgspec.structs.replace(known[5])
    assert num_computed([changed, changed, *known[6:], *known[:5]]) == 1
    assert num_computed([further, further]) == 1
    assert num_computed([known[0], known[-1]]) == 1

"""Charging with limits and a ledger in memory, and a stand-in for an engine that charges as the real one does."""

import asyncio

from api.charging.charging import Charging
from api.frontend.generation import Call
from api.limits.limits import Amounts, Bucket, LimitKind
from api.limits.reservations import Reservation
from cluster.config.tenants.limits import LimitDefaults, Limits, LimitsConfig
from tests.unit.api.charging.test_charge import Books, FakeReservations, end
from tests.unit.factories import a_request


class Reserving(FakeReservations):
    """Remembers which kinds of limits each request has drawn on."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[set[LimitKind]] = []
        self.refusal_of_summaries: Exception | None = None
        """Raised for what draws on no limit of requests."""

    async def reserve(self, tenant: str, buckets: tuple[Bucket, ...], asked: Amounts) -> Reservation:
        kinds = {bucket.kind for bucket in buckets}
        if self.refusal_of_summaries is not None and LimitKind.REQUESTS not in kinds:
            raise self.refusal_of_summaries
        self.kinds.append(kinds)
        reservation = await super().reserve(tenant, buckets, asked)
        reservation.rooms *= len(buckets)
        return reservation


class ChargedBooks(Books):
    def __init__(self, limits: Limits) -> None:
        """`limits`: of each tenant."""
        super().__init__()
        self.reservations: Reserving = Reserving()
        self.charging = Charging(
            LimitsConfig(defaults=LimitDefaults(tenant=limits)),
            "m",
            meter=self.meter,
            recorder=self.recorder,
            reserver=self.reservations,
            hashed=str,
        )

    @property
    def payers(self) -> list[str]:
        """The tenant of each row, in the order of the rows."""
        return [row.tenant_id for row in self.recorder.rows]


async def charged(call: Call) -> None:
    """Charge a call for a prompt of 4 tokens and an answer of 3. Raises ServingError if its limits have no room."""
    if call.charge is not None:
        call.charge.expect(4, 10)
        end(await call.charge.begin(a_request(call.id), call.terms, lambda: 0))
        await asyncio.sleep(0)

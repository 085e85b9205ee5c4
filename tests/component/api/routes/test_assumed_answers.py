"""What limits reserve for clients that say nothing of the length of their answers, over HTTP."""

from typing import Any

import httpx
import pytest

from api.charging.charging import Charging
from api.frontend.generation import Call
from api.limits.budget import BudgetModel, Denied, Entry, Granted
from api.limits.headers import refusal
from api.limits.limits import Amounts, Bucket
from api.limits.reservations import Reservation
from api.metering.meter import Meter
from cluster.config.tenants.limits import LimitDefaults, Limits, LimitsConfig
from tests.component.app_with_fakes import CHAT, COMPLETION, FakeFrontend, an_app
from tests.unit.api.charging.test_charge import FakeRecorder
from tests.unit.factories import a_request
from tests.unit.fake_ports import FakeObserver

CONTEXT = 131_072
"""Tokens of the model's context."""
CONFIG = LimitsConfig(defaults=LimitDefaults(tenant=Limits(tokens_per_minute=100_000)))
HELLO = {"model": "baton-demo", "messages": [{"role": "user", "content": "hello"}]}


class OneTenant:
    """Reserves for one tenant, as Redis would."""

    def __init__(self) -> None:
        self._model = BudgetModel()
        self.asked: list[int] = []

    async def reserve(self, tenant: str, buckets: tuple[Bucket, ...], asked: Amounts) -> Reservation:
        self.asked.append(asked.tokens)
        entry = Entry(str(len(self.asked)), 0, buckets, asked)
        answer = self._model.reserve(entry, 60_000, 0)
        if isinstance(answer, Denied):
            raise refusal(buckets, answer, asked)
        assert isinstance(answer, Granted)
        owner: Any = self
        return Reservation(owner, tenant, entry, answer.rooms, False)

    def look(self, buckets: tuple[Bucket, ...]) -> None: ...

    def expects_room(self, buckets: tuple[Bucket, ...], asked: Amounts) -> bool:
        return False

    def settle_open(self, reservation: Reservation, actual: Amounts) -> None:
        """The requests here stay open."""


class LongAnswers(FakeFrontend):
    """Each answer may take what the context has, unless the request bounds it."""

    async def chat_completion(self, body: Any, call: Call) -> Any:
        await self._charged(body, call)
        return await super().chat_completion(body, call)

    async def completion(self, body: Any, call: Call) -> Any:
        await self._charged(body, call)
        return await super().completion(body, call)

    async def _charged(self, body: Any, call: Call) -> None:
        named = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name)]
        assert call.charge is not None
        call.charge.expect(10, min([CONTEXT - 10, *named]), 1)
        await call.charge.begin(a_request("r"), call.terms, lambda: 0)


@pytest.mark.parametrize(
    ("route", "fields", "status", "reserved"),
    [
        (CHAT, {}, 200, 10 + CONFIG.assumed_output_tokens),
        (CHAT, {"max_tokens": None}, 200, 10 + CONFIG.assumed_output_tokens),
        (CHAT, {"max_completion_tokens": 50_000}, 200, 50_010),
        (CHAT, {"max_tokens": 50_000}, 200, 50_010),
        (CHAT, {"max_tokens": 120_000}, 400, 120_010),
        (COMPLETION, {"max_tokens": 50_000}, 200, 50_010),
    ],
)
async def test_request_reserves_the_maximum_that_it_names_or_what_is_assumed(
    route: str, fields: dict[str, Any], status: int, reserved: int
) -> None:
    reserver, recorder = OneTenant(), FakeRecorder()
    meter = Meter(recorder, None, "i0", FakeObserver())
    charging = Charging(CONFIG, "baton-demo", meter=meter, recorder=recorder, reserver=reserver, hashed=str)
    transport = httpx.ASGITransport(app=an_app(LongAnswers(), charging=charging))
    body = (HELLO if route == CHAT else {"model": "baton-demo", "prompt": "hello"}) | fields
    async with httpx.AsyncClient(transport=transport, base_url="http://baton") as http:
        answer = await http.post(route, json=body, headers={"authorization": "Bearer sk-alice"})
    assert (answer.status_code, reserver.asked) == (status, [reserved])
    if status != 200:
        assert answer.json()["error"]["code"] == "request_exceeds_limit"

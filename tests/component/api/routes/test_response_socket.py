"""What holds for the messages of a WebSocket as it holds for requests, on a real listener with a fake model."""

import asyncio
from typing import Any

import pytest

from api.identity.access import Access
from api.identity.keys import invalid_key
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS
from api.limits.limits import Amounts, LimitKind
from cluster.config.tenants.limits import Limits
from cluster.errors import RateLimited
from cluster.metrics.requests import WEBSOCKETS
from tests.component.answering import Model
from tests.component.app_with_fakes import FakeFrontend
from tests.component.charged import ChargedBooks
from tests.component.socket_service import answer, ask, code_at_the_end, events, socket_service

SOMEBODY = Principal(tenant="0123456789abcdef", project="proj_1", key="key_1", rights=ALL_RIGHTS)
CREDENTIAL = {"authorization": "Bearer sk-somebody"}


class Accounts:
    """One credential, until it is revoked."""

    def __init__(self) -> None:
        self.principal: Principal | None = SOMEBODY
        self.access = Access(self._identify, is_required=True)

    async def _identify(self, credential: str) -> Principal:
        if self.principal is None:
            raise invalid_key("this key is revoked")
        return self.principal


async def test_who_sends_no_credential_gets_no_socket() -> None:
    async with socket_service(Model(), access=Accounts().access) as service:
        assert await service.refusal() == (401, "invalid_api_key")
        await service.connection(additional_headers=CREDENTIAL)


@pytest.mark.parametrize("moved", [None, Principal(tenant="f" * 16, project="p", key="k", rights=ALL_RIGHTS)])
async def test_credential_that_is_revoked_or_moved_ends_its_connection(moved: Principal | None) -> None:
    accounts, model = Accounts(), Model()
    async with socket_service(model, access=accounts.access) as service:
        connection = await service.connection(additional_headers=CREDENTIAL)
        assert (await answer(connection))["type"] == "response.completed"
        accounts.principal = moved
        refused = await answer(connection)
        assert (refused["status"], refused["error"]["code"]) == (401, "invalid_api_key")
        assert await code_at_the_end(connection) == 1008
        assert len(model.bodies) == 1


async def test_responses_hold_capacity_and_connections_do_not() -> None:
    model = Model()
    model.may_go_on.clear()
    async with socket_service(model, max_ongoing_requests=1) as service:
        connections = [await service.connection() for _ in range(5)]
        await ask(connections[0])
        await model.asked(1)
        refused = await answer(connections[1])
        assert (refused["status"], refused["error"]["code"]) == (503, "engine_overloaded")
        assert refused["error"]["headers"]["retry-after"] == "1"
        model.may_go_on.set()
        assert (await events(connections[0]))[-1]["type"] == "response.completed"
        assert (await answer(connections[1]))["type"] == "response.completed"
        assert service.app.state.services.capacity.num_held == 0


async def test_replica_that_ends_lets_responses_finish() -> None:
    model = Model()
    model.may_go_on.clear()
    async with socket_service(model) as service:
        idle, busy = await service.connection(), await service.connection()
        await ask(busy)
        await ask(busy)  # waits, and is not begun
        await model.asked(1)
        closing = asyncio.create_task(service.listener.close())
        assert await code_at_the_end(idle) == 1012
        model.may_go_on.set()
        assert (await events(busy))[-1]["type"] == "response.completed"
        assert await code_at_the_end(busy) == 1012
        await asyncio.wait_for(closing, 5)
        assert len(model.bodies) == 1


async def test_replica_that_ends_cuts_what_outlasts_its_patience() -> None:
    model = Model()
    model.may_go_on.clear()
    async with socket_service(model, drain_s=1.0) as service:
        connection = await service.connection()
        await ask(connection)
        await model.asked(1)
        await asyncio.wait_for(service.listener.close(), 5)
        assert await code_at_the_end(connection) == 1006


async def test_failure_before_the_first_token_is_an_error_and_after_it_an_event_of_the_response() -> None:
    model = Model()
    model.error = RateLimited("no room", "requests", 2.0, {"x-ratelimit-remaining-requests": "0"})
    async with socket_service(model) as service:
        connection = await service.connection()
        refused = await answer(connection)
        assert (refused["status"], refused["error"]["type"]) == (429, "requests")
        assert refused["error"]["headers"] == {"x-ratelimit-remaining-requests": "0", "retry-after": "2"}
        model.error = ValueError("a fault")
        assert (await answer(connection))["error"]["type"] == "server_error"
        model.error = None
        assert (await answer(connection))["type"] == "response.completed"


async def test_message_that_generates_nothing_draws_on_the_limits_of_requests() -> None:
    books = ChargedBooks(Limits(requests_per_minute=60, concurrent_requests=9))
    async with socket_service(FakeFrontend(), charging=books.charging) as service:
        connection = await service.connection()
        assert (await answer(connection, generate=False))["type"] == "response.completed"
        assert books.reservations.kinds == [{LimitKind.REQUESTS, LimitKind.CONCURRENT}]
        books.reservations.error = RateLimited("no room", "requests", 2.0, {})
        refused: Any = await answer(connection, generate=False)
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert books.reservations.settled[:1] == [Amounts(1)]


async def test_open_sockets_are_counted() -> None:
    async with socket_service(Model()) as service:
        before = WEBSOCKETS._value.get()
        connection = await service.connection()
        await answer(connection)
        assert WEBSOCKETS._value.get() == before + 1

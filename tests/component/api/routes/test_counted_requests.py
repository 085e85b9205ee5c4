"""Requests that generate nothing draw on the limits of requests, each once."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute

from api.identity.access import HAS_TENANTS
from api.limits.limits import Amounts, LimitKind
from api.routes import usage
from api.routes.counted_requests import is_counted
from api.safety.scored_text import Scored
from cluster.config.tenants.limits import Limits
from cluster.errors import RateLimited
from tests.component.app_with_fakes import FakeFrontend, a_client, an_app
from tests.component.charged import ChargedBooks
from tests.expected import of_kind
from tests.unit.fake_ports import loop_rounds

GENERATING = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/responses/{response}/regenerate",
}
"""Their charge counts them."""
NEVER_REFUSED = {"/v1/responses/{response}/cancel"}
"""Whoever is at a limit must be able to end a request."""
ROUNDS = 5


class Screening(FakeFrontend):
    """A frontend that screens."""

    def __init__(self) -> None:
        super().__init__()
        self.moderations: list[int] = []

    async def moderated(self, tenant: str, texts: list[str]) -> tuple[str, list[Scored]]:
        self.moderations.append(len(texts))
        return "v1", []


@pytest.fixture
def books() -> ChargedBooks:
    return ChargedBooks(Limits(requests_per_minute=60, concurrent_requests=9, tokens_per_minute=9, cost_per_month=0))


@pytest.fixture
def frontend() -> Screening:
    return Screening()


async def asked(books: ChargedBooks, method: str, path: str, frontend: FakeFrontend, body: Any) -> httpx.Response:
    async with a_client(an_app(frontend, charging=books.charging)) as client:
        return await client.request(method, path, json=body)


def test_every_post_of_tenants_draws_on_limits_of_requests() -> None:
    declared = [*an_app(FakeFrontend()).routes, *usage.router.routes]
    routes = [of_kind(Route, route) for route in declared if not isinstance(route, WebSocketRoute)]
    below = [route for route in routes if route.path.startswith(HAS_TENANTS)]
    posts = {route.path: route.endpoint for route in below if "POST" in (route.methods or ())}
    assert {path for path, endpoint in posts.items() if not is_counted(endpoint)} == GENERATING | NEVER_REFUSED
    sums = [route.endpoint for route in routes if route.path.startswith("/v1/organization/")]
    assert sums and all(is_counted(endpoint) for endpoint in sums)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/moderations", {"input": ["hello"] * 3}),
        ("POST", "/v1/conversations", {}),
        ("POST", "/v1/conversations/conv_1/items", {"items": [{"role": "user", "content": "hello"}]}),
        ("POST", "/v1/safety/appeals", {"event_id": "e", "reason": "r"}),
        ("POST", "/v1/responses/input_tokens", {"input": "hello", "previous_response_id": "resp_1"}),
        ("POST", "/v1/messages/count_tokens", {"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
        ("GET", "/v1/conversations?query=hello", None),
        ("GET", "/v1/organization/costs?start_time=1", None),
    ],
)
async def test_request_that_generates_nothing_counts_once_and_without_tokens(
    books: ChargedBooks, frontend: Screening, method: str, path: str, body: Any
) -> None:
    """Whatever becomes of it: these find no PostgreSQL."""
    answer = await asked(books, method, path, frontend, body)
    assert answer.status_code in (200, 503)
    assert answer.headers["x-ratelimit-remaining-requests"] == "59"
    await loop_rounds(ROUNDS)
    assert books.reservations.kinds == [{LimitKind.REQUESTS, LimitKind.CONCURRENT}]
    assert books.reservations.settled == [Amounts(1)]
    assert books.recorder.rows == []


async def test_lists_do_not_count(books: ChargedBooks, frontend: Screening) -> None:
    await asked(books, "GET", "/v1/conversations", frontend, None)
    assert books.reservations.kinds == []


async def test_request_beyond_a_limit_is_refused_before_any_work(books: ChargedBooks, frontend: Screening) -> None:
    books.reservations.error = RateLimited("no room", "requests", 2.0, {"x-ratelimit-remaining-requests": "0"})
    answer = await asked(books, "POST", "/v1/moderations", frontend, {"input": "hello"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert answer.headers["retry-after"] == "2" and frontend.moderations == []


async def test_client_that_leaves_gives_its_place_back(books: ChargedBooks, frontend: Screening) -> None:
    books.reservations.gate.hold()
    asking = asyncio.create_task(asked(books, "POST", "/v1/moderations", frontend, {"input": "hello"}))
    await asyncio.wait_for(books.reservations.gate.reached.wait(), 10)
    asking.cancel()
    await asyncio.wait([asking])
    books.reservations.gate.open()
    await loop_rounds(ROUNDS)
    assert books.reservations.settled == [Amounts(1)] and frontend.moderations == []

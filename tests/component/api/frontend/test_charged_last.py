"""A request is charged after all checks, and what fails between the charge and the session gives everything back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from api.charging.charge import RequestCharge
from api.charging.charging import Charging
from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.frontend.release import Release
from api.frontend.remote_engine import RemoteEngine
from api.limits.limits import Amounts
from api.metering.meter import Meter
from cluster.config.tenants.limits import LimitDefaults, Limits, LimitsConfig
from cluster.errors import InvalidRequest, RateLimited, ServingError
from tests.component.app_with_fakes import CHAT, FakeCluster, FakeFrontend, a_client, an_app
from tests.component.fake_engines import FakeEngines
from tests.unit.api.charging.test_charge import Books
from tests.unit.fake_ports import loop_rounds

NO_SUCH_TOKEN = 10**6
ONE: dict[str, Any] = {"model": "baton-demo", "prompt": "Paris"}
ROUNDS = 5

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
]


@pytest.fixture(scope="module")
def engines() -> FakeEngines:
    return FakeEngines()


@pytest.fixture(scope="module")
def frontend(engines: FakeEngines) -> Frontend:
    return asyncio.run(engines.frontend(128))


@pytest.fixture
def books(engines: FakeEngines) -> Books:
    engines.reset()
    return Books()


async def answered(frontend: Frontend, charge: RequestCharge, body: dict[str, Any]) -> Any:
    """The answer, or the frames of the stream."""
    call = Call(charge=charge)
    answer = await frontend.completion(body, call)
    if isinstance(answer, dict):
        return answer
    frames = [frame async for frame in answer]
    if call.error is not None:
        raise call.error
    return frames


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ["Paris", [NO_SUCH_TOKEN]]},
        {"prompt": [[NO_SUCH_TOKEN]]},
        {"logit_bias": {str(NO_SUCH_TOKEN): 1}},
        {"structured_outputs": {"regex": "("}},
    ],
    ids=["the second prompt", "the only prompt", "a parameter", "a constraint"],
)
async def test_request_that_a_check_refuses_reserves_nothing(
    frontend: Frontend, engines: FakeEngines, books: Books, wrong: dict[str, Any], stream: bool
) -> None:
    with pytest.raises(InvalidRequest):
        await answered(frontend, books.charge(), ONE | wrong | {"stream": stream})
    assert (books.reservations.asked, books.recorder.openings, engines.requests) == ([], [], [])


async def test_limit_without_room_refuses_before_any_work(books: Books) -> None:
    books.reservations.refused_before = RateLimited("no room", "requests", 3.0, {"x-ratelimit-remaining-requests": "0"})
    limited = Limits(requests_per_minute=1)
    charging = Charging(
        LimitsConfig(defaults=LimitDefaults(tenant=limited)),
        "baton-demo",
        meter=Meter(books.recorder, None, "i0", books.observer),
        recorder=books.recorder,
        reserver=books.reservations,
        hashed=str,
    )
    fake = FakeFrontend()
    async with a_client(an_app(fake, FakeCluster(), charging=charging)) as client:
        refused = await client.post(CHAT, json={"model": "baton-demo", "messages": []})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (refused.headers["retry-after"], fake.bodies) == ("3", [])


def failing(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a defect")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    "place",
    [(RemoteEngine, "_expect"), (RemoteEngine, "detokenizer"), (RemoteEngine, "release"), (Release, "__init__")],
    ids=lambda place: place[1],
)
async def test_failure_before_the_session_charges_nothing(
    frontend: Frontend, books: Books, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], stream: bool
) -> None:
    if place[1] == ("_expect" if stream else "detokenizer"):
        return  # the other way of a request does not come here
    monkeypatch.setattr(*place, failing)
    with pytest.raises(ServingError):
        await answered(frontend, books.charge(), ONE | {"stream": stream})
    assert (books.reservations.asked, books.recorder.openings) == ([], [])


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_session_that_does_not_begin_gives_its_charge_back(
    frontend: Frontend, books: Books, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(engine_of(frontend), "_start_session", failing)
    with pytest.raises(ServingError):
        await answered(frontend, books.charge(), ONE | {"stream": stream})
    await loop_rounds(ROUNDS)
    assert len(books.reservations.asked) == 1
    assert books.reservations.settled == [Amounts(0, 0, 0)]
    assert [opening.id for opening in books.recorder.openings] == books.recorder.closings


def engine_of(frontend: Frontend) -> Callable[..., Any]:
    engine: Any = frontend._chat.engine_client
    return engine

"""A request has the same id in its answer, in the log and in its route receipt."""

import asyncio
import io
import logging
from typing import Any

import pytest

from api.edge.request_id import HTTP_REQUEST, RequestIds, request_id_of
from api.frontend.generation import Call
from cluster.errors import GenerationFailed, Overloaded
from cluster.observability.logging import set_up_logging
from tests.component.app_with_fakes import CHAT, FakeFrontend, a_client, an_app, posted
from tests.hostile.http.wire import GET, listening

NAMED = {"x-request-id": "trace:1/a+b=c@d.e_f-g"}
MALFORMED = ["", " ", "a b", "a" * 129, "a\tb", 'a"b', "a;b", "a,b", "<a>", "a%0a", "é"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/healthz"),
        ("GET", "/v1/models"),
        ("GET", "/nowhere"),
        ("PUT", "/v1/models"),
        ("POST", CHAT),
        ("GET", "/v1/conversations"),
    ],
)
async def test_every_answer_has_the_id_that_the_client_gave(method: str, path: str) -> None:
    async with a_client(an_app(FakeFrontend())) as client:
        answer = await client.request(method, path, headers=NAMED)
        assert answer.headers["x-request-id"] == NAMED["x-request-id"]


@pytest.mark.parametrize("error", [Overloaded("full", 1.0), GenerationFailed("broken", "d0"), RuntimeError("a fault")])
async def test_errors_have_it_too(error: Overloaded | GenerationFailed | RuntimeError) -> None:
    answer = await posted(FakeFrontend(error), headers=NAMED)
    assert answer.status_code >= 500
    assert answer.headers["x-request-id"] == NAMED["x-request-id"]


@pytest.mark.parametrize("given", MALFORMED)
async def test_id_that_is_no_plain_word_is_replaced(given: str) -> None:
    answer = await posted(headers={"x-request-id": given.encode("latin-1")})
    made = answer.headers["x-request-id"]
    assert made.startswith("req_")
    assert made != given


def test_ids_that_are_made_differ() -> None:
    assert len({request_id_of(None) for _ in range(1000)}) == 1000


async def test_answers_to_what_is_no_request_have_one() -> None:
    async with listening() as wire:
        assert (await wire.asked(b"nonsense\r\n\r\n")).headers["x-request-id"].startswith("req_")
        assert (await wire.asked(GET)).headers["x-request-id"].startswith("req_")


class Speaking(FakeFrontend):
    """Logs each request that it gets, while further requests run."""

    async def chat_completion(self, body: Any, call: Call) -> Any:
        await asyncio.sleep(0)
        logging.getLogger("baton.test").warning("asked by %s\nFORGED line", body["user"])
        return await super().chat_completion(body, call)


async def test_lines_of_the_log_name_the_request_and_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr("sys.stderr", said)
        set_up_logging([RequestIds()])
    try:
        async with a_client(an_app(Speaking())) as client:
            users = ["one", "two", "three"]
            await asyncio.gather(
                *(client.post(CHAT, json={"user": user}, headers={"x-request-id": f"id-{user}"}) for user in users)
            )
        logging.getLogger("baton.test").warning("outside")
    finally:
        logger = logging.getLogger("baton")
        logger.handlers, logger.propagate = [], True
    *lines, outside = said.getvalue().splitlines()
    assert len(lines) == 3
    for user in users:
        assert sum(f"[id-{user}] asked by {user}\\nFORGED" in line for line in lines) == 1
    assert "[-] outside" in outside


async def test_call_knows_the_id_and_workers_another() -> None:
    frontend = FakeFrontend()
    await posted(frontend, headers=NAMED)
    (terms,) = frontend.terms
    assert terms.http_request == NAMED["x-request-id"]


async def test_what_comes_after_a_request_is_not_named_by_it() -> None:
    await posted(headers=NAMED)
    assert HTTP_REQUEST.get() == ""

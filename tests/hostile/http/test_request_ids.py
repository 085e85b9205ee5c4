"""A request has the same id in its answer, in the log and in its route receipt."""

import asyncio
import io
import logging
from typing import Any

import pytest

from api.edge.request_id import HTTP_REQUEST, RequestIds, request_id_of
from api.frontend.generation import Call
from api.server.receipt_log import ReceiptLog
from cluster.errors import GenerationFailed, Overloaded
from cluster.observability.logging import set_up_logging
from tests.component.app_with_fakes import CHAT, FakeFrontend, a_client, an_app, posted
from tests.hostile.http.wire import GET, listening, post

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


ID = b"x-request-id: mine-1"
HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n" + ID + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (HEAD + b"X: 1", "header_timeout"),
        (HEAD + b"X: " + b"a" * 600_000, "headers_too_large"),
        (HEAD + b"X: 1\r\n" + b"a" * 600_000, "headers_too_large"),
        (HEAD + b"X: 1\r\nbad header\r\n\r\n", "invalid_http"),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nxyz\r\n", "invalid_http"),
        (post(b"x", ID, length=10), "body_timeout"),
        (post(b"", ID, length=1000), "request_too_large"),
        (b"POST /echo HTTP/1.1\r\n" + ID + b"\r\n\r\n", "missing_host"),
        (b"POST /echo HTTP/1.1\r\nHost: other.example\r\n" + ID + b"\r\n\r\n", "host_not_allowed"),
    ],
    ids=str,
)
async def test_request_that_is_refused_before_it_is_read_keeps_its_id(sent: bytes, code: str) -> None:
    header_timeout_s = 0.2 if code == "header_timeout" else 15.0
    async with listening(header_timeout_s=header_timeout_s, body_grace_s=0.1, max_body_bytes=100) as wire:
        answer = await wire.asked(sent)
        assert (answer.code, answer.headers["x-request-id"]) == (code, "mine-1")


async def test_requests_that_no_replica_has_room_for_have_one() -> None:
    async with listening(max_connections_per_address=1, max_ongoing_requests=1) as wire:
        held = await wire.connection()
        wire.app.may_answer.clear()
        await held.send(post(b"{}"))
        refused = await (await wire.connection()).answer()
        assert (refused.status, refused.headers["x-request-id"][:4]) == (503, "req_")
        wire.app.may_answer.set()
        await held.answer()


async def test_id_of_one_request_is_not_that_of_the_next_on_its_connection() -> None:
    async with listening() as wire:
        connection = await wire.connection()
        assert (await connection.asked(HEAD + b"Content-Length: 0\r\n\r\n")).headers["x-request-id"] == "mine-1"
        assert (await connection.asked(b"nonsense\r\n\r\n")).headers["x-request-id"].startswith("req_")


async def test_answer_says_to_which_trace_it_belongs_if_traces_are_exported() -> None:
    receipts = ReceiptLog(0, ReceiptLog(0))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    frontend = FakeFrontend()
    async with a_client(an_app(frontend, receipts=receipts)) as client:
        answer = await client.post(CHAT, json={}, headers={"traceparent": parent, "tracestate": "a=1"})
        own = await client.post(CHAT, json={}, headers={"traceparent": "nonsense"})
    of_client, made = (terms.trace for terms in frontend.terms)
    assert of_client is not None and made is not None
    assert (of_client.parent_id, of_client.state, of_client.is_sampled) == ("b7ad6b7169203331", "a=1", True)
    assert answer.headers["traceparent"] == f"00-0af7651916cd43dd8448eb211c80319c-{of_client.span_id}-01"
    assert own.headers["x-request-id"] == f"req_{made.trace_id}"
    assert own.headers["traceparent"] == f"00-{made.trace_id}-{made.span_id}-00"


async def test_answer_names_no_trace_if_none_are_exported() -> None:
    frontend = FakeFrontend()
    answer = await posted(frontend, headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
    assert "traceparent" not in answer.headers
    assert frontend.terms[0].trace is None


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

"""The page on the admin port: its files are there without the key, and nothing else is."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from api.frontend.generation import Call
from api.server.receipt_log import ReceiptLog
from api.web.operator_chat import MOST_MESSAGES, MOST_TOKENS
from api.web.page_files import FOLDER, POLICY, PageFiles
from cluster.errors import TooManyRequests, WorkerUnreachable
from cluster.messages.ids import Path, SloClass
from cluster.messages.placement import Prediction, Slo
from tests.component.app_with_fakes import (
    ADMIN_KEY,
    CHAT,
    OPERATOR,
    FakeCluster,
    FakeFrontend,
    a_client,
    a_placement,
    an_admin_app,
    an_app,
    asked_by_operator,
)
from tests.unit.factories import a_receipt

FILES = PageFiles(needs_key=True)
ASKED = {"messages": [{"role": "user", "content": "Hello"}]}
FRAMES = ['data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n', "data: [DONE]\n\n"]
PREDICTED = Prediction(Path.PREFILL_DECODE, None, None, 0.4, 0.02, 0.1, 0.0, 0.2, 0.3)
PLACEMENT = a_placement(Path.PREFILL_DECODE, slo=Slo(1.0, 0.05), predicted=PREDICTED)


class ServingFrontend(FakeFrontend):
    """Closes the receipt of a request when its answer has ended, as a session does."""

    def __init__(self, receipts: ReceiptLog, answer: Any = FRAMES) -> None:
        super().__init__(answer)
        self.receipts = receipts
        self.tenants: list[str] = []

    async def chat_completion(self, body: Any, call: Call) -> dict[str, Any] | AsyncGenerator[str, None]:
        self.tenants.append(call.tenant)
        return await super().chat_completion(body, call)

    async def _frames(self, frames: list[str], call: Call) -> AsyncGenerator[str, None]:
        try:
            async for frame in super()._frames(frames, call):
                yield frame
        finally:
            self.receipts.closed(
                a_receipt(f"chatcmpl-{call.id}", placement=PLACEMENT, http_request=call.terms.http_request)
            )


def a_page(
    frontend: FakeFrontend, receipts: ReceiptLog | None = None, key: str | None = ADMIN_KEY, **config: Any
) -> httpx.AsyncClient:
    return a_client(an_admin_app(an_app(frontend, receipts=receipts, **config), key))


def events_of(response: httpx.Response) -> list[tuple[str, Any]]:
    events = []
    for block in response.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in lines:
            data = lines["data"]
            events.append((lines.get("event", "message"), data if data == "[DONE]" else json.loads(data)))
    return events


@pytest.mark.parametrize("file", FILES.files, ids=lambda file: file.path)
async def test_files_of_the_page_need_no_key_and_say_what_they_are(file: Any) -> None:
    async with a_page(FakeFrontend()) as browser:
        answer = await browser.get(file.path)
        assert (answer.status_code, answer.content) == (200, file.body)
        assert answer.headers["content-type"] == file.type
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        again = await browser.get(file.path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await browser.get(file.path, headers={"if-none-match": '"x"'})).status_code == 200


def test_policy_allows_the_page_its_own_files_alone() -> None:
    allowed = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert allowed["default-src"] == allowed["base-uri"] == allowed["form-action"] == "'none'"
    assert allowed["frame-ancestors"] == "'none'"
    assert {allowed[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}


def test_page_has_nothing_inline_and_names_no_other_host() -> None:
    """The policy would stop it in the browser; here it is seen before."""
    for file in FILES.files:
        text = file.body.decode()
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "document.write" not in text
    index = next(file.body.decode() for file in FILES.files if file.path == "/")
    assert " style=" not in index and " onclick=" not in index and "<style" not in index
    assert index.count("<script") == index.count('<script type="module" src="/page/main.js">') == 1


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page",
        "/page/../page_files.py",
        "/page/..%2fpage_files.py",
        "/page/%2e%2e/page_files.py",
        "/page/....//page_files.py",
        "/page//etc/passwd",
        "//page/main.js",
        "/page/main.js/",
        "/page/MAIN.JS",
        "/page/main.js%00",
        "/page/page_files.py",
        "/index.html",
        "/baton/live",
        "/baton/chat",
    ],
)
async def test_nothing_else_is_there_without_the_key(path: str) -> None:
    async with a_page(FakeFrontend()) as browser:
        # As it is: httpx would resolve the dots of a path
        answer = await browser.send(raw(browser, path))
        assert answer.status_code == 401
        browser.event_hooks = {}  # a redirect is no answer of OpenAI's document
        with_key = await browser.send(raw(browser, path, OPERATOR))
        assert b"PageFiles" not in with_key.content and b"root:" not in with_key.content


def raw(client: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None) -> httpx.Request:
    request = client.build_request("GET", "/", headers=headers)
    request.url = request.url.copy_with(raw_path=path.encode())
    return request


async def test_public_port_has_no_page() -> None:
    async with a_client(an_app(FakeFrontend())) as client:
        for path in FILES.paths - {"/"} | {"/baton/live"}:
            assert (await client.get(path)).status_code == 404
        assert (await client.get("/")).status_code == 405  # HEAD alone


def test_all_files_of_the_folder_are_served() -> None:
    assert len(FILES.files) == len([file for file in FOLDER.iterdir() if file.is_file()])


@pytest.mark.parametrize(("key", "needs"), [(ADMIN_KEY, "true"), (None, "false")])
async def test_page_knows_whether_it_must_ask_for_the_key(key: str | None, needs: str) -> None:
    async with a_page(FakeFrontend(), key=key) as browser:
        assert f'data-needs-key="{needs}"' in (await browser.get("/")).text
        assert (await browser.get("/baton/live")).status_code == (401 if key else 200)


async def test_document_says_what_the_receipts_say() -> None:
    receipts = ReceiptLog(5)
    receipts.closed(a_receipt("good", placement=PLACEMENT))
    receipts.closed(a_receipt("late", placement=PLACEMENT, ttft_s=3.0))
    shown = (await asked_by_operator("GET", "/baton/live", receipts=receipts)).json()
    assert (shown["form"], shown["number"], shown["replica"]) == (1, 1, "replica-0")
    (line,) = shown["requests"]["classes"]
    assert (line["num"], line["num_good"], line["results"]) == (2, 1, {"good": 1, "ttft_missed": 1})
    assert [one["request_id"] for one in shown["requests"]["last"]] == ["late", "good"]
    assert shown["requests"]["last"][0]["ttft_s"] == 3.0
    known = shown["cluster"]["known"]
    assert [worker["worker"] for worker in known["workers"]] == ["d0", "p0"]
    assert known["queue"][0]["request_id"] == "r"


async def test_document_is_there_while_the_scheduler_is_away() -> None:
    cluster = FakeCluster(error=WorkerUnreachable("the Scheduler cannot be reached", "scheduler"))
    answer = await asked_by_operator("GET", "/baton/live", cluster)
    assert answer.status_code == 200
    assert answer.json()["cluster"] == {"age_s": None, "error": "the Scheduler cannot be reached", "known": None}


async def test_chat_streams_an_answer_and_then_what_became_of_it() -> None:
    receipts = ReceiptLog(5)
    frontend = ServingFrontend(receipts)
    async with a_page(frontend, receipts) as browser:
        answer = await browser.post("/baton/chat", json={**ASKED, "slo_class": "interactive"}, headers=OPERATOR)
    assert (answer.status_code, answer.headers["x-baton-path"]) == (200, "P->D")
    (text, baton, done) = events_of(answer)
    assert text[1]["choices"][0]["delta"]["content"] == "Hi"
    assert done == ("message", "[DONE]")
    kind, report = baton
    (receipt,) = receipts.kept.last(1)
    assert kind == "baton"
    assert report["request"]["request_id"] == receipt.request_id == report["request_id"]
    assert (report["request"]["ttft_s"], report["request"]["predicted_ttft_s"]) == (0.5, 0.4)
    assert report["http_request"] == answer.headers["x-request-id"] == receipt.http_request
    ((_, body),) = frontend.bodies
    assert (body["model"], body["stream"], body["max_completion_tokens"]) == ("baton-demo", True, 512)
    assert (frontend.tenants, frontend.terms[0].slo_class) == (["operator"], SloClass.INTERACTIVE)


async def test_chat_without_kept_receipts_has_what_is_known_of_the_placement() -> None:
    frontend = FakeFrontend(FRAMES)
    frontend.placement = PLACEMENT
    async with a_page(frontend) as browser:
        answer = await browser.post("/baton/chat", json=ASKED, headers=OPERATOR)
    report = events_of(answer)[1][1]
    assert (report["request"], report["path"], report["predicted_ttft_s"]) == (None, "P->D", 0.4)


async def test_chat_that_is_refused_has_a_status() -> None:
    frontend = FakeFrontend(TooManyRequests("all workers are busy", 3.0))
    async with a_page(frontend, max_ongoing_requests=1) as browser:
        for _ in range(2):  # the first one has given its place back
            answer = await browser.post("/baton/chat", json=ASKED, headers=OPERATOR)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
            assert answer.json()["error"]["message"] == "all workers are busy"


async def test_chat_counts_as_an_open_sequence_of_the_replica() -> None:
    app = an_app(FakeFrontend(FRAMES), max_ongoing_requests=1)
    capacity = app.state.services.capacity
    async with a_client(an_admin_app(app)) as browser:
        held = capacity.acquire()
        assert (await browser.post("/baton/chat", json=ASKED, headers=OPERATOR)).status_code == 503
        held.release()
        assert (await browser.post("/baton/chat", json=ASKED, headers=OPERATOR)).status_code == 200
    assert capacity.num_held == 0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * (MOST_MESSAGES + 1)}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "messages"),
        ({"max_tokens": MOST_TOKENS + 1}, "max_tokens"),
        ({"slo_class": "first"}, "slo_class"),
        ({"tools": []}, "tools"),
        ({"store": True}, "store"),
        ({"path": "D"}, "path"),
    ],
)
async def test_chat_takes_messages_of_text_alone(change: dict[str, Any], param: str) -> None:
    frontend = FakeFrontend(FRAMES)
    async with a_page(frontend) as browser:
        answer = await browser.post("/baton/chat", json={**ASKED, **change}, headers=OPERATOR)
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"] or "").startswith(param)
    assert frontend.bodies == []


async def test_chat_takes_a_path_where_clients_may_name_one() -> None:
    frontend = FakeFrontend(FRAMES)
    async with a_page(frontend, allow_path_header=True) as browser:
        assert (await browser.post("/baton/chat", json={**ASKED, "path": "D"}, headers=OPERATOR)).status_code == 200
    assert frontend.terms[0].path is Path.DECODE


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
async def test_page_of_another_origin_reads_and_asks_nothing_even_with_the_key(origin: str) -> None:
    frontend = FakeFrontend(FRAMES)
    async with a_page(frontend, cors_origins=["*"]) as browser:
        headers = {**OPERATOR, "origin": origin}
        for answer in (
            await browser.get("/baton/live", headers=headers),
            await browser.post("/baton/chat", json=ASKED, headers=headers),
            await browser.get("/", headers=headers),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
            assert "access-control-allow-origin" not in answer.headers
    assert frontend.bodies == []


async def test_chat_is_on_the_admin_port_alone_and_the_public_routes_on_the_public_one() -> None:
    async with a_page(FakeFrontend()) as browser:
        assert (await browser.post(CHAT, json={}, headers=OPERATOR)).status_code == 404

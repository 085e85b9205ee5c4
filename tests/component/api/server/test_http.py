import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from api.frontend.generation import Call
from api.server.receipt_log import ReceiptLog
from cluster.errors import (
    UNFORESEEN,
    ContentFiltered,
    GenerationFailed,
    InvalidRequest,
    NotFound,
    Overloaded,
    PrefillFailed,
    ServingError,
    TooManyRequests,
    WorkerUnreachable,
)
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import CellName, Outcome, Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Prediction, Slo
from cluster.messages.views import CellState
from router.session.receipt import RouteReceipt
from tests.component.app_with_fakes import (
    CARD,
    CHAT,
    COMPLETION,
    FakeCluster,
    FakeFrontend,
    a_client,
    a_placement,
    an_app,
    asked,
    asked_by_operator,
    posted,
)

FRAME = 'data: {"id":"1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"stop_reason":null}]}\n\n'
SHOWN = 'data: {"id":"1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
DONE = "data: [DONE]\n\n"
ERROR = 'data: {"error": {"message": "boom", "type": "InternalServerError", "param": null, "code": 500}}\n\n'


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error in a response, which has all four keys whatever happened."""
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


async def test_ingress_that_answers_is_alive() -> None:
    response = await asked("GET", "/healthz")
    assert (response.status_code, response.json()["status"]) == (200, "ok")


@pytest.mark.parametrize(("connected", "status"), [(True, 200), (False, 503)])
async def test_cluster_is_ready_once_a_pair_is_connected(connected: bool, status: int) -> None:
    response = await asked("GET", "/readyz", cluster=FakeCluster(connected=connected))
    counts = {"prefill_workers": 1, "decode_workers": 1, "connected_pairs": int(connected)}
    assert (response.status_code, response.json()) == (status, {"ready": connected} | counts)


async def test_cluster_that_can_never_be_ready_says_why() -> None:
    response = await asked(
        "GET", "/readyz", cluster=FakeCluster(connected=False, mismatch="dtype is a here and b there")
    )
    assert (response.status_code, response.json()["mismatch"]) == (503, "dtype is a here and b there")


async def test_cluster_is_not_ready_while_the_scheduler_is_away() -> None:
    away = FakeCluster(error=WorkerUnreachable("worker scheduler is unreachable", "scheduler"))
    response = await asked("GET", "/readyz", cluster=away)
    assert (response.status_code, error_of(response)["code"]) == (503, "worker_failed")


async def test_readiness_of_several_cells_says_which_are_not_ready() -> None:
    cells = {CellName("a"): CellState.AWAY, CellName("b"): CellState.OPEN}
    response = await asked("GET", "/readyz", cluster=FakeCluster(cells=cells))
    assert (response.status_code, response.json()["cells"]) == (200, {"a": "away", "b": "open"})
    none = dict.fromkeys(cells, CellState.AWAY)
    response = await asked("GET", "/readyz", cluster=FakeCluster(cells=none))
    assert (response.status_code, response.json()["ready"]) == (503, False)


@pytest.mark.parametrize(("connected", "status"), [(True, 200), (False, 503)])
async def test_cells_that_all_drain_are_ready_if_they_can_serve(connected: bool, status: int) -> None:
    cells = dict.fromkeys(map(CellName, "ab"), CellState.DRAINING)
    response = await asked("GET", "/readyz", cluster=FakeCluster(connected=connected, cells=cells))
    assert response.status_code == status


async def test_cells_are_listed_with_their_states_and_requests() -> None:
    response = await asked_by_operator("GET", "/baton/cells")
    (cell,) = response.json()["cells"]
    assert response.json()["application"] == "baton"
    assert (cell["name"], cell["state"], cell["num_open"], cell["num_waiting"]) == ("main", "open", 3, 2)


async def test_queue_says_who_waits_and_for_how_long_yet() -> None:
    response = await asked_by_operator("GET", "/baton/queue")
    (waiting,) = response.json()["waiting"]
    expected = {"slo_class": "batch", "num_before": 0, "waited_s": 1.0, "wait_s": 2.0, "gives_up_s": 20.0}
    assert waiting == {"request_id": "r", "is_paused": False, "why": "it is placed at the next look", **expected}


@pytest.mark.parametrize("connected", [True, False])
async def test_links_are_listed_whether_or_not_they_are_proved(connected: bool) -> None:
    response = await asked_by_operator("GET", "/baton/links", cluster=FakeCluster(connected=connected))
    assert response.status_code == 200
    (link,) = response.json()["links"]
    assert (link["prefill"], link["decode"], link["is_proved"]) == ("p0", "d0", connected)
    assert (link["latency_s"], link["bytes_per_s"]) == ((0.002, 4e9) if connected else (None, None))


async def test_metrics_are_one_page_for_all_processes() -> None:
    response = await asked_by_operator("GET", "/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.text == (
        "# HELP baton_output_tokens_total Tokens.\n"
        "# TYPE baton_output_tokens_total counter\n"
        'baton_output_tokens_total{deployment="ingress",replica="x"} 1.0\n'
        'baton_output_tokens_total{deployment="prefill",replica="x"} 2.0\n'
    )


async def test_models_are_listed() -> None:
    response = await asked("GET", "/v1/models")
    assert (response.status_code, response.json()) == (200, {"object": "list", "data": [CARD]})


async def test_model_is_retrieved_by_its_id() -> None:
    assert (await asked("GET", "/v1/models/baton-demo")).json() == CARD


async def test_model_that_is_not_served_is_not_found() -> None:
    response = await asked("GET", "/v1/models/org/other")
    assert (response.status_code, error_of(response)) == (
        404,
        {
            "message": "the model 'org/other' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        },
    )


async def test_who_asks_whether_a_service_is_here_gets_an_empty_answer() -> None:
    answer = await asked("HEAD", "/")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("url", ["/v1", "/v1/nothing", "/v1/completions/1", "/redoc", "/docs/oauth2-redirect"])
async def test_unknown_url_is_not_found(url: str) -> None:
    response = await asked("GET", url)
    assert (response.status_code, error_of(response)["code"]) == (404, "unknown_url")
    assert error_of(response)["message"] == f"unknown request URL: GET {url}"


@pytest.mark.parametrize(("method", "url"), [("GET", COMPLETION), ("POST", "/healthz"), ("DELETE", "/v1/models")])
async def test_wrong_method_is_refused(method: str, url: str) -> None:
    response = await asked(method, url)
    assert (response.status_code, error_of(response)) == (
        405,
        {
            "message": f"Method Not Allowed: {method} {url}",
            "type": "invalid_request_error",
            "param": None,
            "code": "method_not_allowed",
        },
    )


@pytest.mark.parametrize("url", [CHAT, COMPLETION])
@pytest.mark.parametrize("body", [b"", b"{", b"{'a': 1}", b"NaN", b'{"model": "m"} tail'], ids=repr)
async def test_body_that_is_not_json_is_refused(url: str, body: bytes) -> None:
    response = await asked("POST", url, content=body)
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("body", [b'"\xff"', b"[" * 10_000], ids=["not UTF-8", "too deep"])
async def test_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    response = await asked("POST", CHAT, content=body)
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json")


async def test_body_reaches_the_frontend_as_it_was_sent() -> None:
    frontend = FakeFrontend()
    await posted(frontend, CHAT, json={"model": "m", "n": None})
    await posted(frontend, COMPLETION, json=[1])
    assert frontend.bodies == [("chat", {"model": "m", "n": None}), ("text", [1])]


async def test_answer_is_cleaned_of_the_engines_affairs() -> None:
    body = {"id": "1", "choices": [{"index": 0, "logprobs": None, "stop_reason": None}], "kv_transfer_params": {"a": 1}}
    response = await posted(FakeFrontend(body))
    assert response.status_code == 200
    assert response.json() == {"id": "1", "choices": [{"index": 0, "logprobs": None}]}


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (ServingError("boom"), 500, "server_error", None, None),
        (
            InvalidRequest("bad", "temperature", "invalid_value"),
            400,
            "invalid_request_error",
            "temperature",
            "invalid_value",
        ),
        (
            ContentFiltered("not allowed here", "messages", "safe_1"),
            400,
            "invalid_request_error",
            "messages",
            "content_filter",
        ),
        (NotFound("gone", "model", "model_not_found"), 404, "invalid_request_error", "model", "model_not_found"),
        (Overloaded("full", 2.0), 503, "server_error", None, "engine_overloaded"),
        (TooManyRequests("too long a queue", 2.0), 429, "server_error", None, "engine_overloaded"),
        (WorkerUnreachable("lost", "d0"), 503, "server_error", None, "worker_failed"),
        (PrefillFailed("failed", "p0"), 503, "server_error", None, "worker_failed"),
        (GenerationFailed("failed", "d0"), 503, "server_error", None, "worker_failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_error_has_its_status_and_all_four_keys(
    error: Any, status: int, kind: str, param: str | None, code: str | None
) -> None:
    response = await posted(FakeFrontend(error))
    assert response.status_code == status
    assert error_of(response) == {"message": str(error), "type": kind, "param": param, "code": code}


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (2.0, "2"), (2.1, "3")])
async def test_overloaded_client_is_told_when_to_retry_in_whole_seconds(seconds: float, header: str) -> None:
    response = await posted(FakeFrontend(Overloaded("full", seconds)))
    assert response.headers["retry-after"] == header


async def test_bug_is_an_error_in_openai_s_shape_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    response = await posted(FakeFrontend(RuntimeError("secret")))
    assert (response.status_code, error_of(response)["type"]) == (500, "server_error")
    assert "secret" not in response.text
    assert f"POST {CHAT} failed" in caplog.text
    assert "RuntimeError: secret" in caplog.text


@pytest.mark.parametrize("url", [CHAT, COMPLETION])
async def test_stream_is_server_sent_events_byte_for_byte(url: str) -> None:
    response = await posted(FakeFrontend([FRAME, FRAME, DONE]), url)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-cache, no-store", "no")
    assert response.text == SHOWN + SHOWN + DONE


async def test_stream_that_fails_before_its_first_frame_is_an_error_status() -> None:
    frontend = FakeFrontend([ERROR, DONE])
    frontend.failed_with = Overloaded("no decode worker can be reached", 5.0)
    response = await posted(frontend)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert error_of(response)["message"] == "no decode worker can be reached"
    assert frontend.stream_is_closed


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_client_is_told_the_safety_event_of_a_refused_input(is_streamed: bool) -> None:
    refused = ContentFiltered("not allowed here", "messages", "safe_1")
    frontend = FakeFrontend([ERROR, DONE] if is_streamed else refused)
    frontend.failed_with = refused
    response = await posted(frontend)
    assert response.status_code == 400
    assert (response.headers["x-safety-event-id"], response.headers["x-should-retry"]) == ("safe_1", "false")
    assert error_of(response)["code"] == "content_filter"


async def test_stream_that_fails_with_vllm_s_own_error_is_an_error_status() -> None:
    response = await posted(FakeFrontend([ERROR, DONE]))
    assert (response.status_code, error_of(response)["message"]) == (500, UNFORESEEN)


async def test_stream_that_fails_midway_ends_with_an_error_frame_and_a_terminal_frame() -> None:
    frontend = FakeFrontend([FRAME, ERROR, DONE])
    frontend.failed_with = WorkerUnreachable("worker d0 is gone", "d0")
    response = await posted(frontend)
    error = (
        'data: {"error":{"message":"worker d0 is gone","type":"server_error","param":null,"code":"worker_failed"}}\n\n'
    )
    assert (response.status_code, response.text) == (200, SHOWN + error + DONE)


@pytest.mark.parametrize("answer", [{"id": "1"}, [FRAME, DONE]], ids=["body", "stream"])
@pytest.mark.parametrize("path", Path)
async def test_response_says_where_it_ran(answer: dict[str, str] | list[str], path: Path) -> None:
    frontend = FakeFrontend(answer)
    frontend.placement = a_placement(path)
    assert (await posted(frontend)).headers["x-baton-path"] == path


@pytest.mark.parametrize("path", Path)
async def test_path_header_forces_the_path_where_it_is_allowed(path: Path) -> None:
    frontend = FakeFrontend()
    response = await posted(frontend, headers={"x-baton-path": path}, allow_path_header=True)
    assert (response.status_code, [terms.path for terms in frontend.terms]) == (200, [path])


async def test_path_is_the_scheduler_s_choice_without_the_header() -> None:
    frontend = FakeFrontend()
    await posted(frontend, allow_path_header=True)
    assert [terms.path for terms in frontend.terms] == [None]


@pytest.mark.parametrize("answer", [{"id": "1"}, [FRAME, DONE]], ids=["body", "stream"])
async def test_response_says_what_it_was_to_meet_and_what_was_predicted(answer: dict[str, str] | list[str]) -> None:
    predicted = Prediction(Path.DECODE, None, WorkerId("d0"), 0.12, 0.0123, 0.1, 0.0, 0.2, 0.3)
    frontend = FakeFrontend(answer)
    frontend.placement = a_placement(Path.DECODE, slo=Slo(1.25, 0.05), predicted=predicted)
    headers = (await posted(frontend, json={"service_tier": "flex"})).headers
    assert headers["x-baton-slo"] == "class=batch, ttft_ms=1250, tpot_ms=50.0"
    assert headers["x-baton-predicted"] == "ttft_ms=120, tpot_ms=12.3"


async def test_response_without_a_prediction_names_the_class_alone() -> None:
    headers = (await posted()).headers
    assert headers["x-baton-slo"] == "class=standard"
    assert "x-baton-predicted" not in headers


async def test_service_tier_and_headers_say_how_a_request_is_to_be_served() -> None:
    frontend = FakeFrontend({"id": "1", "service_tier": None})
    headers = {"x-baton-ttft-slo-ms": "250", "x-baton-tpot-slo-ms": "20"}
    response = await posted(frontend, json={"service_tier": "priority"}, headers=headers)
    (terms,) = frontend.terms
    assert (terms.slo_class, terms.ttft_s, terms.tpot_s) == (SloClass.INTERACTIVE, 0.25, 0.02)
    assert response.json() == {"id": "1", "service_tier": "priority"}


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"json": {"service_tier": "best"}}, "service_tier"),
        ({"headers": {"x-baton-ttft-slo-ms": "soon"}}, "x-baton-ttft-slo-ms"),
        ({"headers": {"x-baton-tpot-slo-ms": "0"}}, "x-baton-tpot-slo-ms"),
    ],
    ids=str,
)
async def test_service_that_does_not_exist_is_refused(options: dict[str, Any], param: str) -> None:
    frontend = FakeFrontend()
    response = await posted(frontend, **options)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert frontend.bodies == []


async def test_receipts_are_not_shown_unless_they_are_kept() -> None:
    for path in ("/baton/receipts", "/baton/receipts/r"):
        response = await asked_by_operator("GET", path, keep_receipts=0)
        assert (response.status_code, error_of(response)["code"]) == (404, "unknown_url")


@pytest.mark.parametrize("name", ["r1", "req%2F1"])
async def test_receipt_is_found_by_either_id_whichever_replica_has_it(name: str) -> None:
    cluster = FakeCluster()
    cluster.kept.add(a_receipt("r1", http_request="req/1"))
    response = await asked_by_operator("GET", f"/baton/receipts/{name}", cluster)
    (receipt,), (waterfall,) = response.json()["receipts"], response.json()["waterfalls"]
    assert (receipt["request_id"], receipt["result"], receipt["closed_at"] > 1e9) == ("r1", "good", True)
    assert (waterfall["request_id"], waterfall["ttft_ms"], waterfall["rows"]) == ("r1", 500.0, [])


@pytest.mark.parametrize("name", ["unknown", "a" * 5000, "%00%0a"])
async def test_receipt_that_is_not_kept_is_not_found(name: str) -> None:
    response = await asked_by_operator("GET", f"/baton/receipts/{name}")
    assert (response.status_code, error_of(response)["code"]) == (404, "receipt_not_found")


async def test_last_receipts_are_shown_newest_first_with_the_names_of_all_fields() -> None:
    receipts = ReceiptLog(2)
    for request_id in ("a", "b", "c"):
        receipts.closed(a_receipt(request_id))
    response = await asked_by_operator("GET", "/baton/receipts?last=5", receipts=receipts, keep_receipts=2)
    shown = response.json()["receipts"]
    assert [receipt["request_id"] for receipt in shown] == ["c", "b"]
    assert (shown[0]["result"], shown[0]["slo_class"], shown[0]["ttft_s"]) == ("good", "standard", 0.5)
    assert shown[0]["placement"]["slo"] == {"ttft_s": 1.0, "tpot_s": 0.05}
    assert shown[0]["placement"]["considered"][0]["gpu_s"] == 0.2
    assert shown[0]["sources"] == {"computed": 1, "local": 2, "pulled": 3, "offloaded": 0}
    (one,) = (await asked_by_operator("GET", "/baton/receipts?last=1", receipts=receipts, keep_receipts=2)).json()[
        "receipts"
    ]
    assert one["request_id"] == "c"


async def test_receipts_of_one_http_request_are_found_by_its_id() -> None:
    receipts = ReceiptLog(9)
    for number in range(6):
        receipts.closed(a_receipt(f"r{number}", http_request=f"req_{number // 2}"))
    found = await asked_by_operator("GET", "/baton/receipts?http_request=req_1", receipts=receipts, keep_receipts=9)
    assert [receipt["request_id"] for receipt in found.json()["receipts"]] == ["r3", "r2"]
    one = await asked_by_operator(
        "GET", "/baton/receipts?http_request=req_1&last=1", receipts=receipts, keep_receipts=9
    )
    assert [receipt["request_id"] for receipt in one.json()["receipts"]] == ["r3"]
    none = await asked_by_operator("GET", "/baton/receipts?http_request=never", receipts=receipts, keep_receipts=9)
    assert none.json() == {"receipts": []}


@pytest.mark.parametrize("last", ["", "-1", "all", "9" * 20, "9" * 5000])
async def test_number_of_receipts_must_be_one(last: str) -> None:
    response = await asked_by_operator("GET", f"/baton/receipts?last={last}", keep_receipts=2)
    assert (response.status_code, error_of(response)["param"]) == (400, "last")


def a_receipt(request_id: str, http_request: str = "") -> RouteReceipt:
    predicted = Prediction(Path.DECODE, None, WorkerId("d0"), 0.12, 0.0123, 0.1, 0.0, 0.2, 0.3)
    placement = a_placement(Path.DECODE, slo=Slo(1.0, 0.05), predicted=predicted, considered=(predicted,))
    return RouteReceipt(
        request_id=RequestId(request_id),
        outcome=Outcome.FINISHED,
        slo_class=SloClass.STANDARD,
        placement=placement,
        num_prompt_tokens=6,
        num_output_tokens=2,
        num_attempts=1,
        ttft_s=0.5,
        tpot_s=0.01,
        prefill_sources=None,
        sources=PromptTokenSources(1, 2, 3),
        http_request=http_request,
    )


@pytest.mark.parametrize(
    ("allowed", "wanted", "code"),
    [(False, "D", "unsupported_parameter"), (True, "X", "invalid_value"), (True, "", "invalid_value")],
)
async def test_path_header_that_is_not_allowed_or_names_no_path_is_refused(
    allowed: bool, wanted: str, code: str
) -> None:
    frontend = FakeFrontend()
    response = await posted(frontend, headers={"x-baton-path": wanted}, allow_path_header=allowed)
    assert (response.status_code, error_of(response)["code"]) == (400, code)
    assert frontend.bodies == []


async def test_body_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    frontend = FakeFrontend()
    async with a_client(an_app(frontend, max_body_bytes=100)) as client:
        refused = await client.post(CHAT, json={"messages": "x" * 200})
        taken = await client.post(CHAT, json={"messages": "x" * 50})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
    assert (taken.status_code, len(frontend.bodies)) == (200, 1)


class Unanswering(FakeFrontend):
    """Generates for longer than its client waits."""

    is_cancelled = False

    async def chat_completion(self, body: Any, call: Call) -> dict[str, Any]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return {}


class Slow(FakeFrontend):
    """Sends each frame after a silence."""

    async def _frames(self, frames: list[str], call: Call) -> AsyncGenerator[str, None]:
        for frame in frames:
            await asyncio.sleep(0.05)
            yield frame


async def test_stream_is_kept_alive_by_comments() -> None:
    app = an_app(Slow([FRAME, FRAME, DONE]), keep_alive_s=0.02)
    async with a_client(app) as client:
        text = (await client.post(CHAT, json={"stream": True})).text
    assert text.startswith(": keep-alive\n\n")
    assert text.replace(": keep-alive\n\n", "") == SHOWN + SHOWN + DONE


async def test_openai_s_client_does_not_see_the_comments() -> None:
    chunk = '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s}]}'
    frames = [f"data: {chunk % delta}\n\n" for delta in ('{"role":"assistant"}', '{"content":"a"}', '{"content":"b"}')]
    app = an_app(Slow([*frames, DONE]), keep_alive_s=0.02)
    http: Any = a_client(app)  # its own types say that OpenAI's client wants httpx2's
    async with http, AsyncOpenAI(base_url="http://baton/v1", api_key="-", http_client=http) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
    assert texts == [None, "a", "b"]


class Client:
    """Posts a request, takes the first frame slowly and leaves meanwhile. What is sent to it then is never accepted."""

    def __init__(self) -> None:
        self.has_left = asyncio.Event()
        self._requests = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive(self) -> dict[str, Any]:
        if self._requests:
            return self._requests.pop()
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            self.has_left.set()
            await asyncio.Event().wait()


async def asked_by(client: Client, frontend: FakeFrontend) -> None:
    asgi = {"version": "3.0", "spec_version": "2.3"}  # uvicorn's, and so Serve's
    headers = [(b"host", b"baton"), (b"content-type", b"application/json"), (b"content-length", b"2")]
    scope = {"type": "http", "asgi": asgi, "method": "POST", "path": CHAT, "query_string": b"", "headers": headers}
    await an_app(frontend)(scope, client.receive, client.send)


async def test_client_that_leaves_closes_the_stream() -> None:
    frontend = FakeFrontend([FRAME] * 100)
    await asked_by(Client(), frontend)
    assert frontend.stream_is_closed


async def test_client_that_leaves_before_its_answer_cancels_it() -> None:
    frontend, client = Unanswering(), Client()
    client.has_left.set()
    await asked_by(client, frontend)
    assert frontend.is_cancelled

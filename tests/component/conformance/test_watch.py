"""Watched clients report what deviates from OpenAI's document."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.data import shared_data
from tests.conformance.document import document
from tests.conformance.watch import Record, watched

MODEL = {"id": "m", "object": "model", "created": 1, "owned_by": "us"}
DELTA = {"type": "response.reasoning_text.delta", "sequence_number": 0, "item_id": "rs_1", "output_index": 0}
DELTA |= {"content_index": 0, "delta": "a"}


def reported(
    asked: str, content: Any, status: int = 200, media_type: str = "application/json", pieces: int = 10**6
) -> list[str]:
    """The deviations of an answer that comes in pieces of so many bytes."""
    method, path = asked.split()
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    parts = (body[start : start + pieces] for start in range(0, len(body), pieces))
    transport = httpx.MockTransport(
        lambda request: httpx.Response(status, headers={"content-type": media_type}, content=parts)
    )
    with watched(httpx.Client(base_url="http://x", transport=transport), record=(record := Record())) as client:
        assert client.request(method, path).content == body
    return record.take()


def events(*told: Any, name: str | None = None) -> bytes:
    return b"".join(f"event: {name or one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in told)


def reported_of_events(content: bytes, pieces: int = 10**6) -> list[str]:
    return reported("POST /v1/responses", content, media_type="text/event-stream", pieces=pieces)


def test_answer_that_follows_the_document_is_not_reported() -> None:
    assert reported("GET /v1/models/m", MODEL) == []
    assert reported("GET /v1/models", {"object": "list", "data": [MODEL]}, pieces=1) == []


def test_deviation_is_reported_with_its_place() -> None:
    answer = {"object": "list", "data": [MODEL, MODEL | {"created": "today"}]}
    where = "GET /v1/models 200 application/json: ListModelsResponse /data/1/created"
    assert reported("GET /v1/models", answer) == [f'{where}: "today" is not of type "integer"']


def test_deviation_within_a_union_is_reported_of_the_member_that_is_meant() -> None:
    item = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "status": "completed"}
    (report,) = reported("GET /v1/conversations/conv_1/items/fc_1", item)
    assert report.endswith('ConversationItem /: "arguments" is a required property')


@pytest.mark.parametrize(
    ("asked", "answer", "status"),
    [
        ("GET /v1/nothing", {}, 200),
        ("GET /v1/models", {}, 202),
        ("GET /v1/models", {"detail": "Not Found"}, 404),
        ("GET /v1/models", {"error": {"message": "x", "type": "y", "param": None, "code": 400}}, 400),
        ("GET /baton/queue", {"error": "x"}, 503),
        ("GET /v1/conversations", {"object": "list", "data": [{}], "has_more": False}, 200),
    ],
)
def test_answer_that_is_none_of_openai_s_or_ours_is_reported(asked: str, answer: dict[str, Any], status: int) -> None:
    assert reported(asked, answer, status)


def test_our_own_answers_are_ours() -> None:
    assert reported("GET /readyz", {"ready": False}, 503) == []
    assert reported("GET /baton/queue", {"waiting": []}) == []


@pytest.mark.parametrize("pieces", [1, 7, 10**6])
def test_events_are_compared_one_by_one_however_they_are_cut(pieces: int) -> None:
    wrong = DELTA | {"delta": 1}
    content = events(DELTA) + b": keep-alive\n\n" + events(wrong, DELTA) + b"data: [DONE]\n\n"
    (report,) = reported_of_events(content, pieces)
    assert report.endswith('ResponseReasoningTextDeltaEvent /delta: 1 is not of type "string"')


@pytest.mark.parametrize(
    "content",
    [
        events(DELTA | {"type": "response.thinking.delta"}),
        events(DELTA, name="response.output_text.delta"),
        b'data: {"error": {"message": "x", "type": "y", "param": null, "code": null}}\n\n',
        events(DELTA)[:-1],
    ],
    ids=["unknown type", "another name", "error of a chat", "cut"],
)
def test_stream_that_is_none_of_openai_s_is_reported(content: bytes) -> None:
    assert reported_of_events(content)


def test_without_the_document_a_watched_client_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared_data, "SHARED", tmp_path)
    document.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"openai-openapi.json.gz is missing.*beside the checkout"):
        watched(httpx.Client())
    document.cache_clear()

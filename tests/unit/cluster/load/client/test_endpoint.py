"""Where requests go, and what they say."""

import json
from typing import Any

import pytest

from cluster.load.client.endpoint import Api, Endpoint, body_of, checked_headers
from cluster.simulation.traffic.workload import Speaker

MESSAGES = [(Speaker.SYSTEM, "be brief"), (Speaker.USER, "hello")]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000/v1"),
        ("https://api.example.com/openai/v1", "https://api.example.com:443/openai/v1"),
        ("http://host", "http://host:80/v1"),
    ],
)
def test_url_has_a_port_and_a_path(given: str, url: str) -> None:
    assert Endpoint.parse(given).url == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:8000",
        "ftp://host",
        "http://u:p@host/v1",
        "http://host:0",
        "http://host:99999",
        "http://host/v1?a=b",
        "http://host/v1#a",
        "http://host/a b",
        "http://host/a\r\nX: y",
        "http://",
        "http://host:8000:1",
    ],
)
def test_what_is_no_url_of_an_api_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no URL"):
        Endpoint.parse(text)


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"": "c"}, {"a": "b\r\nc: d"}, {"a": "bé"}])
def test_header_that_would_break_the_request_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        checked_headers(headers)


def test_request_is_http() -> None:
    request = Endpoint.parse("http://host:81").post("/completions", {"X-A": "b"}, b"{}")
    assert request == (
        b"POST /v1/completions HTTP/1.1\r\nHost: host:81\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nX-A: b\r\n\r\n{}"
    )


def body(api: Api, further: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(body_of(api, "m", MESSAGES, 16, further))
    return fields


def test_each_api_has_its_fields() -> None:
    chat = body(Api.CHAT, {})
    assert chat["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert chat["max_tokens"] == 16 and chat["stream_options"] == {"include_usage": True}
    assert body(Api.COMPLETIONS, {})["prompt"] == "be brief hello"
    assert body(Api.RESPONSES, {})["max_output_tokens"] == 16


def test_further_fields_win_and_null_removes() -> None:
    fields = body(Api.CHAT, {"ignore_eos": True, "max_tokens": None, "max_completion_tokens": 16})
    assert fields["ignore_eos"] is True and "max_tokens" not in fields and fields["max_completion_tokens"] == 16

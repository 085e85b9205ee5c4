"""Errors as Anthropic's clients see them."""

import json

import pytest

from api.wire.errors import MAX_MESSAGE
from api.wire.messages.errors import error_body, error_event, http_status
from api.wire.messages.surface import is_of_messages
from cluster.errors import (
    Conflict,
    ContentFiltered,
    Forbidden,
    InvalidRequest,
    LimitsUnavailable,
    Misdirected,
    NotFound,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    RequestTooLarge,
    ServingError,
    TooManyRequests,
    Unauthorized,
    WorkerFailed,
)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("bad", "temperature", "invalid_value"), 400, "invalid_request_error"),
        (ContentFiltered("not here", "messages", "safe_1"), 400, "invalid_request_error"),
        (Unauthorized("no key"), 401, "authentication_error"),
        (QuotaExceeded("the budget is spent"), 402, "billing_error"),
        (Forbidden("not you"), 403, "permission_error"),
        (NotFound("no such model"), 404, "not_found_error"),
        (Conflict("at once"), 409, "invalid_request_error"),
        (RequestTooLarge("too large"), 413, "request_too_large"),
        (Misdirected("other host"), 421, "invalid_request_error"),
        (RateLimited("wait", "tokens", 1.0, {}), 429, "rate_limit_error"),
        (TooManyRequests("too much", 1.0), 429, "rate_limit_error"),
        (ServingError("boom"), 500, "api_error"),
        (WorkerFailed("gone", "d0"), 500, "api_error"),
        (Overloaded("full", 1.0), 529, "overloaded_error"),
        (LimitsUnavailable("away", 1.0), 529, "overloaded_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_error_has_anthropic_s_status_and_type(error: ServingError, status: int, kind: str) -> None:
    body = error_body(error, "req_1")
    assert (http_status(error), body["type"], body["error"]["type"]) == (status, "error", kind)
    assert (body["request_id"], body["error"]["message"]) == ("req_1", str(error))
    assert body["error"].get("details", {}).get("error_code") == error.code


def test_too_long_prompt_is_named_as_clients_expect() -> None:
    error = InvalidRequest("600 tokens, and 512 fit", "messages", "context_length_exceeded")
    assert error_body(error, "")["error"]["message"] == "prompt is too long: 600 tokens, and 512 fit"


def test_long_text_of_a_client_is_cut() -> None:
    assert len(error_body(InvalidRequest("m" * 10_000), "")["error"]["message"]) == MAX_MESSAGE


def test_error_of_a_stream_is_an_event_with_the_same_body() -> None:
    error = Overloaded("full", 1.0)
    name, data, *rest = error_event(error, "req_1").decode().split("\n")
    assert (name, rest) == ("event: error", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == error_body(error, "req_1")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"])
def test_paths_of_messages_belong_to_the_surface(path: str) -> None:
    assert is_of_messages(path)


@pytest.mark.parametrize("path", ["", "/", "/v1/messagesx", "/v1/chat/completions", "/x/v1/messages"])
def test_other_paths_do_not(path: str) -> None:
    assert not is_of_messages(path)

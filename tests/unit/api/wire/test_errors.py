"""Errors as clients see them: the body and the headers."""

import pytest

from api.wire.errors import MAX_MESSAGE, MAX_PARAM, error_body, error_headers
from cluster.errors import (
    ContentFiltered,
    InvalidRequest,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    ServingError,
    Unauthorized,
)

FILTERED = ContentFiltered("the input is not allowed here", "messages", "safe_1")


def test_refusal_of_an_input_names_its_event_and_forbids_another_try() -> None:
    assert error_headers(FILTERED) == {"x-safety-event-id": "safe_1", "x-should-retry": "false"}
    assert error_body(FILTERED) == {
        "error": {
            "message": "the input is not allowed here",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "content_filter",
        }
    }


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (Overloaded("full", 1.2), {"retry-after": "2"}),
        (Unauthorized("the API key is malformed"), {"www-authenticate": "Bearer"}),
        (InvalidRequest("bad", "temperature", "invalid_value"), {}),
        (
            RateLimited("wait", "tokens", 0.1, {"x-ratelimit-reset-tokens": "1s"}),
            {"x-ratelimit-reset-tokens": "1s", "retry-after": "1"},
        ),
        (QuotaExceeded("the budget is spent"), {"x-should-retry": "false"}),
        (ServingError("boom"), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_headers_tell_what_the_client_may_do(error: ServingError, headers: dict[str, str]) -> None:
    assert error_headers(error) == headers


def test_long_text_of_a_client_is_cut() -> None:
    told = error_body(InvalidRequest("m" * 10_000, "p" * 10_000))["error"]
    assert (len(told["message"]), len(told["param"])) == (MAX_MESSAGE, MAX_PARAM)

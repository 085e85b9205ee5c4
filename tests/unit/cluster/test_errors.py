from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cluster import errors
from cluster.errors import (
    ClientTooSlow,
    Conflict,
    ConstraintFailed,
    ContentFiltered,
    EngineLost,
    ErrorMessage,
    Forbidden,
    HeadersTooLarge,
    InvalidRequest,
    LimitsUnavailable,
    Misdirected,
    NotFound,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    RequestQuarantined,
    RequestTimedOut,
    RequestTooLarge,
    ServingError,
    StateUnavailable,
    StillAdmitting,
    TooManyRequests,
    Unauthorized,
    UnknownMessage,
    UnsupportedMediaType,
    UrlTooLong,
    WorkerFailed,
)

WORKER_FAILURES: list[Callable[[str, str], ServingError]] = [WorkerFailed, EngineLost, *WorkerFailed.__subclasses__()]
INSTANCES = [
    ServingError("out of luck"),
    InvalidRequest("temperature must not be negative", "temperature", "invalid_value"),
    NotFound("no such model", "model", "model_not_found"),
    ConstraintFailed("the answer was ended: following its schema takes too long per token"),
    ContentFiltered("the input is not allowed here", "messages", "safe_1"),
    Conflict("another response is being generated", "conversation", "conversation_locked"),
    RequestTooLarge("the request body has more than 5 bytes", None, "request_too_large"),
    Unauthorized("the API key is malformed", None, "invalid_api_key"),
    Forbidden("this origin may not ask", None, "origin_not_allowed"),
    Misdirected("this host is not served here", None, "host_not_allowed"),
    UnsupportedMediaType("the body must be JSON", None, "unsupported_media_type"),
    RequestTimedOut("the body came too slowly", None, "body_timeout"),
    UrlTooLong("the URL has more than 5 bytes", None, "url_too_long"),
    HeadersTooLarge("the headers have more than 5 bytes", None, "headers_too_large"),
    Overloaded("no decode worker can be reached", 2.5),
    TooManyRequests("the queue is longer than the objective", 2.5),
    RateLimited("this key has no room", "tokens", 2.5, {"x-ratelimit-remaining-tokens": "0"}),
    QuotaExceeded("the budget of the month is spent"),
    LimitsUnavailable("the limits cannot be reached now", 5.0),
    StillAdmitting("another try of the same request is being admitted", 1.0),
    StateUnavailable("conversations cannot be reached now", 2.0),
    ClientTooSlow("the client reads too slowly"),
    RequestQuarantined("engines were lost with this request"),
    UnknownMessage("this process does not know the message"),
    *(kind("worker w failed", "w") for kind in WORKER_FAILURES),
]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServingError)]


def test_every_kind_of_error_is_tested_here() -> None:
    assert {type(error) for error in INSTANCES} == set(KINDS)


@pytest.mark.parametrize("error", INSTANCES, ids=lambda error: type(error).__name__)
def test_error_survives_the_way_between_processes(error: Any) -> None:
    message = msgspec.msgpack.encode(ErrorMessage.of(error))
    copy = msgspec.msgpack.decode(message, type=ErrorMessage).to_error()
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert (copy.http_status, copy.code, copy.param) == (error.http_status, error.code, error.param)


def test_error_without_a_message_says_what_its_kind_means() -> None:
    assert str(ServingError()) == "The request could not be served."


def test_message_is_all_that_an_error_shows() -> None:
    assert str(Overloaded("no decode worker can be reached", 2.5)) == "no decode worker can be reached"


def test_only_the_client_s_own_faults_are_client_errors() -> None:
    for kind in KINDS:
        is_the_clients = issubclass(kind, InvalidRequest | ClientTooSlow)
        comes_again = kind in (TooManyRequests, RateLimited, QuotaExceeded, StillAdmitting)
        assert (kind.http_status < 500) == (is_the_clients or comes_again)
        assert (kind.error_type == "invalid_request_error") == (is_the_clients or kind is StillAdmitting)


@pytest.mark.parametrize(
    "message", [ErrorMessage("OfANewerVersion", ["no"]), ErrorMessage("Overloaded", []), ErrorMessage("", [1, 2, 3])]
)
def test_error_that_is_not_known_here_is_an_error_all_the_same(message: errors.ErrorMessage) -> None:
    assert type(message.to_error()) is ServingError

"""Every exception that Baton defines. Arguments are plain values, so that an error can travel between processes.
Pure.

`http_status`, `error_type` and `code` are what a client sees of an error (api/wire/errors.py builds the body).
"""

from typing import Any, Self

import msgspec

UNFORESEEN = "the server failed on this request"
"""The message of an unexpected exception for clients. The exception's own text goes to the log only: it may name files,
addresses, and requests of other clients.
"""

RECEIPT_NOT_FOUND = "receipt_not_found"
"""Code of the error that no kept route receipt has an id."""


class ServingError(Exception):
    """The request could not be served."""

    http_status = 500
    error_type = "server_error"
    code: str | None = None
    param: str | None = None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else str(self.__doc__)


class InvalidRequest(ServingError):
    """The request is invalid."""

    http_status = 400
    error_type = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param, code)
        self.param = param
        self.code = code


class ConstraintFailed(InvalidRequest):
    """The answer could not be held to its schema, regular expression or grammar. It would fail on every worker."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param, code or "structured_output_failed")


class ContentFiltered(InvalidRequest):
    """The safety policy does not allow the input of the request."""

    def __init__(self, message: str, param: str | None, event_id: str) -> None:
        """`event_id`: of the safety event, which an appeal names."""
        super().__init__(message, param, "content_filter")
        self.args = (message, param, event_id)
        self.event_id = event_id


class NotFound(InvalidRequest):
    """The requested object does not exist."""

    http_status = 404


class Conflict(InvalidRequest):
    """The request conflicts with another operation on the same object."""

    http_status = 409


class RequestTooLarge(InvalidRequest):
    """The request body is too large."""

    http_status = 413


class Unauthorized(InvalidRequest):
    """The credential of the request cannot be used."""

    http_status = 401


class Forbidden(InvalidRequest):
    """The request is not allowed."""

    http_status = 403


class Misdirected(InvalidRequest):
    """The request is for another host."""

    http_status = 421


class UnsupportedMediaType(InvalidRequest):
    """The request body is not JSON."""

    http_status = 415


class RequestTimedOut(InvalidRequest):
    """The request was not sent in time."""

    http_status = 408


class UrlTooLong(InvalidRequest):
    """The URL of the request is too long."""

    http_status = 414


class HeadersTooLarge(InvalidRequest):
    """The headers of the request are too large."""

    http_status = 431


class Overloaded(ServingError):
    """No worker can take the request now; retry later."""

    http_status = 503
    code = "engine_overloaded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s


class TooManyRequests(Overloaded):
    """The workers have more to do than this request's objectives allow; retry later."""

    http_status = 429


class RateLimited(Overloaded):
    """A limit per minute or of concurrent requests has no room; retry later."""

    http_status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, kind: str, retry_after_s: float, headers: dict[str, str]) -> None:
        """`kind`: `requests` or `tokens`. `headers`: what the limits have left (api/limits/headers.py)."""
        super().__init__(message, retry_after_s)
        self.args = (message, kind, retry_after_s, headers)
        self.error_type = kind
        self.headers = headers


class QuotaExceeded(ServingError):
    """A budget is spent. The request fits again when the budget is raised, or when its day or month ends."""

    http_status = 429
    error_type = "insufficient_quota"
    code = "insufficient_quota"


class LimitsUnavailable(Overloaded):
    """What is left of the limits of this request cannot be found out now; retry later."""

    code = "limits_unavailable"


class StillAdmitting(Overloaded):
    """Another attempt of the same request is being admitted; retry later."""

    http_status = 409
    error_type = "invalid_request_error"
    code = "request_in_progress"


class StateUnavailable(Overloaded):
    """Stored conversations cannot be reached now; retry later."""

    code = "state_unavailable"


class WorkerFailed(ServingError):
    """A worker failed on this request. Another worker may not."""

    http_status = 503
    code = "worker_failed"

    def __init__(self, message: str, worker: str) -> None:
        super().__init__(message, worker)
        self.worker = worker


class WorkerUnreachable(WorkerFailed):
    """A worker or its engine died, or cannot be reached."""


class EngineLost(WorkerUnreachable):
    """The worker or its engine died, or the engine hung, while it had this request."""


class WorkerBusy(WorkerFailed):
    """A worker has as many requests as it takes."""


class PrefillFailed(WorkerFailed):
    """The prefill worker answered without a usable handoff."""


class GenerationFailed(WorkerFailed):
    """The decode engine ended the request with an internal error."""


class HandoffMismatch(WorkerFailed):
    """The decode engine read other KV blocks than the prefill engine computed."""


class RequestPaused(WorkerFailed):
    """The request leaves its worker for requests of a higher class, and goes on later."""


class RequestQuarantined(ServingError):
    """Engines were lost with this request. Do not send it again."""

    code = "request_quarantined"


class ClientTooSlow(ServingError):
    """The client does not read its stream as fast as it is generated."""

    http_status = 408
    error_type = "invalid_request_error"
    code = "client_too_slow"


class UnknownMessage(ServingError):
    """A process of the cluster does not know a message of another one, by its name or its content. Processes of
    different versions send each other such messages.
    """


_BY_NAME: dict[str, type[ServingError]] = {
    kind.__name__: kind
    for kind in tuple(globals().values())
    if isinstance(kind, type) and issubclass(kind, ServingError)
}


class ErrorMessage(msgspec.Struct, frozen=True, array_like=True):
    """A ServingError on its way to another process."""

    name: str
    args: list[Any]

    @classmethod
    def of(cls, error: ServingError) -> Self:
        return cls(type(error).__name__, list(error.args))

    def to_error(self) -> ServingError:
        """Return the error. An unknown error name or wrong arguments give a plain ServingError, because a caller must
        get an answer from a process of another version, too.
        """
        try:
            return _BY_NAME[self.name](*self.args)
        except (KeyError, TypeError, ValueError):
            return ServingError(f"another process failed with an error that this process does not know: {self.name}")

"""The messages of a WebSocket of /v1/responses: what a client sends, and how errors and events are sent back."""

from typing import Any, NamedTuple

import msgspec

from api.wire.errors import error_body, error_headers
from api.wire.responses.request import KNOWN, ResponseRequest
from cluster.errors import InvalidRequest, ServingError

CREATE = "response.create"
"""The type of the messages that ask for a response."""
KNOWN_IN_MESSAGE = KNOWN | {"generate", "stream_id", "type"}
"""Fields of a message: those of the body of POST /v1/responses, and those that only WebSockets have."""
MAX_STREAM_ID = 256
"""Characters of a `stream_id`, which is repeated in each event: OpenAI's limit. More makes events longer; fewer refuses
clients.
"""
NOT_FOUND = "previous_response_not_found"
"""The code of the error of a message that follows a response that is gone. Clients then send their whole input."""
_NOT_FOUND_STATUS = 400
"""OpenAI's status of NOT_FOUND on a WebSocket. It is 404 in answers over HTTP."""


class CreateMessage(NamedTuple):
    body: dict[str, Any]
    """The body of POST /v1/responses that the message stands for."""
    generates: bool
    """False for a message that only prepares a response which the next one follows."""


class ResponseChain(NamedTuple):
    """What a response with `store: false` leaves behind, so that the next response can follow it."""

    response: str
    """The id of the response."""
    base: str | None
    """The id of the stored response that the chain follows. None if it follows none."""
    items: list[dict[str, Any]]
    """The inputs and outputs since then, the oldest first."""


def stream_id_of(message: Any) -> str | None:
    """The stream of a message, by which its events are marked, even if the message is wrong otherwise."""
    stream_id = message.get("stream_id") if isinstance(message, dict) else None
    return stream_id if isinstance(stream_id, str) and len(stream_id) <= MAX_STREAM_ID else None


def create_message_of(message: dict[str, Any]) -> CreateMessage:
    """Parses a message. Raises InvalidRequest."""
    if message.get("type") != CREATE:
        raise InvalidRequest(f"the type of a message must be '{CREATE}'", "type", "invalid_value")
    if message.get("background"):
        raise InvalidRequest(
            "responses in the background need POST /v1/responses", "background", "unsupported_parameter"
        )
    generates = message.get("generate", True)
    if message.get("stream_id") is not None and stream_id_of(message) is None:
        raise InvalidRequest(
            f"stream_id must be a text of at most {MAX_STREAM_ID} characters", "stream_id", "invalid_value"
        )
    if generates not in (None, True, False):
        raise InvalidRequest("generate has a wrong type", "generate", "invalid_type")
    body = {name: value for name, value in message.items() if name not in ("background", "generate", "stream_id")}
    del body["type"]
    body["stream"] = True
    if generates is False:
        body["store"] = False
    return CreateMessage(body, generates is not False)


def following(request: ResponseRequest, chain: ResponseChain) -> ResponseRequest:
    """The request, which follows `chain`. A stored response gets the whole chain as its input: what is stored must not
    follow what is not stored.
    """
    if not request.is_stored:
        return request._replace(previous=chain.base, followed=chain.items)
    body = {name: value for name, value in request.body.items() if name != "previous_response_id"}
    if chain.base is not None:
        body["previous_response_id"] = chain.base
    return request._replace(body=body, items=[*chain.items, *request.items], previous=chain.base)


def error_message(
    error: ServingError, stream_id: str | None = None, number: int | None = None, headers: dict[str, str] | None = None
) -> bytes:
    """An error as a message. `number`: of this event in the response that it ends; None if no event came before.
    `headers`: those that an answer over HTTP would have, beside those of the error.
    """
    status = _NOT_FOUND_STATUS if error.code == NOT_FOUND else error.http_status
    described: dict[str, Any] = error_body(error)["error"]
    if told := (headers or {}) | error_headers(error):
        described["headers"] = told
    message: dict[str, Any] = {"type": "error", "status": status, "error": described}
    if number is not None:
        message["sequence_number"] = number
    if stream_id is not None:
        message["stream_id"] = stream_id
    return msgspec.json.encode(message)


def marked(event: bytes, stream_id: str | None) -> bytes:
    """An event, which is a JSON object, marked by its stream."""
    if stream_id is None:
        return event
    return event[:-1] + b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"

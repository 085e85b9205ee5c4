"""Errors of vLLM's front half as errors of cluster/errors.py."""

import logging

import msgspec
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMNotFoundError

from api.wire.errors import FULL_REPLICA_RETRY_S
from cluster.errors import UNFORESEEN, GenerationFailed, InvalidRequest, NotFound, Overloaded, ServingError

CHAT_LOGGER = "vllm.entrypoints.openai.chat_completion.serving"
"""vLLM's logger that writes an error for each request for a model that is not served."""


def quiet_refusals() -> None:
    """Keep errors of clients, which their answers name, out of the log."""
    logging.getLogger(CHAT_LOGGER).addFilter(_is_not_of_a_client)


def _is_not_of_a_client(record: logging.LogRecord) -> bool:
    return record.msg != "Error with model %s"


def serving_error(error: Exception) -> ServingError:
    if isinstance(error, VLLMNotFoundError):
        return NotFound(str(error))
    if isinstance(error, GracefulHTTPError):
        return Overloaded(str(error), FULL_REPLICA_RETRY_S)
    if isinstance(error, GenerationError):
        return GenerationFailed(str(error), "unknown")
    return _invalid(str(error), getattr(error, "parameter", None))


def error_of_response(response: ErrorResponse) -> ServingError:
    error = response.error
    if error.code == NotFound.http_status:
        return NotFound(error.message, error.param, "model_not_found" if error.param == "model" else None)
    if error.code >= ServingError.http_status:
        return ServingError(UNFORESEEN)  # vLLM has logged the exception; its text is not for the client
    return _invalid(error.message, error.param)


def error_in_frame(frame: str, known: ServingError | None) -> ServingError | None:
    """The error that an SSE frame of vLLM's serving code reports; None if the frame reports no error. `known` is the
    error that the call already has. It is preferred, because the frame has only its message.
    """
    if not frame.startswith('data: {"error"'):
        return None
    if known is not None:
        return known
    response = msgspec.json.decode(frame.removeprefix("data: "))
    return error_of_response(ErrorResponse.model_validate(response))


def _invalid(message: str, param: str | None) -> InvalidRequest:
    too_long = "maximum context length" in message or "max_model_len" in message
    return InvalidRequest(message, param, "context_length_exceeded" if too_long else "invalid_value")

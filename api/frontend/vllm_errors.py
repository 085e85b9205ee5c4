"""Errors of vLLM's front half as errors of cluster/errors.py."""

import logging

import msgspec
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMClientError, VLLMNotFoundError

from api.wire.errors import FULL_REPLICA_RETRY_S
from cluster.errors import UNFORESEEN, GenerationFailed, InvalidRequest, NotFound, Overloaded, ServingError

RENDERING_FAILED = (VLLMClientError, GracefulHTTPError, ValueError, TypeError, OverflowError, TimeoutError)
"""What vLLM's front half raises for a request that it cannot render."""
CHAT_LOGGER = "vllm.entrypoints.openai.chat_completion.serving"
"""vLLM's logger that writes an error for each request for a model that is not served."""


PARSERS = ("vllm.parser", "vllm.reasoning", "vllm.tool_parsers")
"""vLLM's packages of parsers, which log an exception for each token of a call that they cannot read."""
PARSER_LOG_GAP_S = 10.0
"""Least time between two log records of one parser, in seconds. Longer hides that a parser fails; shorter lets the
answers of a model, and who prompts it, fill the disk.
"""


class _Seldom(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the last record was long ago."""
        is_due = record.created >= self._next_s
        if is_due:
            self._next_s = record.created + PARSER_LOG_GAP_S
        return is_due


def quiet_refusals() -> None:
    """Keep errors of clients, which their answers name, out of the log."""
    logging.getLogger(CHAT_LOGGER).addFilter(_is_not_of_a_client)


def quiet_parsers() -> None:
    """Keep the log from what models write. Called when the parsers are imported."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(PARSERS):
            logger = logging.getLogger(name)
            if not any(isinstance(one, _Seldom) for one in logger.filters):
                logger.addFilter(_Seldom())


def _is_not_of_a_client(record: logging.LogRecord) -> bool:
    return record.msg != "Error with model %s"


def serving_error(error: Exception) -> ServingError:
    if isinstance(error, VLLMNotFoundError):
        return NotFound(str(error))
    if isinstance(error, GracefulHTTPError):
        return Overloaded(str(error), FULL_REPLICA_RETRY_S)
    if isinstance(error, GenerationError):
        return GenerationFailed(str(error), "unknown")
    if isinstance(error, TimeoutError):  # of vLLM's renderer
        return InvalidRequest("the chat template takes too long for these messages", "messages", "invalid_value")
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

"""vLLM's OpenAI front half, without its engine: request models, chat templates, tokenizer, detokenizer, tool and
reasoning parsers. The only ingress file that knows vLLM.

`Frontend` owns vLLM's serving objects; they believe to talk to an engine, which is `RemoteEngine`: it runs one
session per request over the workers and turns their token deltas back into vLLM's request outputs.
"""

import argparse
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from copy import copy
from typing import Any, cast

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.datastructures import State
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMClientError, VLLMNotFoundError
from vllm.outputs import RequestOutput
from vllm.renderers import renderer_from_config
from vllm.sampling_params import SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine import FinishReason as EngineFinishReason
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.serial_utils import MsgpackDecoder

from api.latency import RequestLatency
from api.wire.fields import check_fields
from cluster.config import AppConfig, resolve_model
from cluster.engine import encode_sampling_params
from cluster.errors import GenerationFailed, InvalidRequest, NotFound, Overloaded, ServingError
from cluster.types import GenerateRequest, Path, RequestId, TokenDelta
from router.session import Session

SessionFactory = Callable[[GenerateRequest, Path | None], Session]


class Call:
    """One HTTP request on its way through vLLM's serving code, which cannot carry it: found again by a context
    variable.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path` forces where the request runs."""
        self.id = uuid.uuid4().hex
        self.arrived_at = time.monotonic()
        self.forced_path = path
        self.path: Path | None = None
        """Where it ran; set with the first token."""
        self.error: ServingError | None = None
        """Why generation failed; vLLM's serving code passes on no more than a message."""


_CALL: ContextVar[Call] = ContextVar("call")


class Frontend:
    """Answers chat and text completions from dictionaries, as a dictionary or a stream of SSE frames."""

    def __init__(self, state: State) -> None:
        """`state` as vLLM's `init_app_state` fills it."""
        self._chat = state.openai_serving_chat
        self._completion = state.openai_serving_completion
        self._models = state.openai_serving_models

    @classmethod
    async def start(cls, config: AppConfig, start_session: SessionFactory) -> "Frontend":
        arguments = _arguments(config)
        engine = RemoteEngine(arguments, start_session)
        state = State()
        await init_app_state(cast(EngineClient, engine), state, arguments, ("generate",))
        return cls(state)

    async def models(self) -> list[dict[str, Any]]:
        """The served models, as OpenAI's model objects plus vLLM's `max_model_len`."""
        cards = (await self._models.show_available_models()).data
        return [card.model_dump(include={"id", "object", "created", "owned_by", "max_model_len"}) for card in cards]

    async def chat_completion(self, body: Any, call: Call) -> dict[str, Any] | AsyncGenerator[str, None]:
        """Raises ServingError (InvalidRequest for bad input)."""
        request = _validated(ChatCompletionRequest, body)
        return await self._answer(self._chat.create_chat_completion, request, call)

    async def completion(self, body: Any, call: Call) -> dict[str, Any] | AsyncGenerator[str, None]:
        """Raises ServingError (InvalidRequest for bad input)."""
        request = _validated(CompletionRequest, body)
        return await self._answer(self._completion.create_completion, request, call)

    async def _answer(
        self, create: Callable[[Any], Any], request: Any, call: Call
    ) -> dict[str, Any] | AsyncGenerator[str, None]:
        request.request_id = call.id
        _CALL.set(call)
        try:
            answer = await create(request)
        except (VLLMClientError, GracefulHTTPError, GenerationError, ValueError, TypeError, OverflowError) as error:
            raise call.error or _serving_error(error) from error
        if isinstance(answer, ErrorResponse):
            raise call.error or _error_of_response(answer)
        if isinstance(answer, BaseModel):
            return answer.model_dump()
        return cast(AsyncGenerator[str, None], answer)


class RemoteEngine:
    """What vLLM's serving code needs of an engine (its EngineClient), over sessions on the workers."""

    errored = False

    def __init__(self, arguments: argparse.Namespace, start_session: SessionFactory) -> None:
        self.vllm_config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        self.input_processor = InputProcessor(self.vllm_config, self.renderer)
        self._outputs = OutputProcessor(self.renderer.tokenizer, log_stats=False)
        self._start_session = start_session
        self._decoder = MsgpackDecoder(EngineCoreOutput)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Admission is the Scheduler's."""

    async def is_tracing_enabled(self) -> bool:
        return False

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        **ignored: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run one prompt. `ignored` are the engine's own affairs: priority, data-parallel rank, trace headers."""
        call = _CALL.get()
        try:
            request = self._processed(request_id, prompt, sampling_params)
        except VLLMClientError as error:
            call.error = _serving_error(error)
            raise GenerationError(str(error)) from error  # which vLLM's serving code passes on without logging it
        session = self._start_session(
            _generate_request(request, reasoning_ended, reasoning_parser_kwargs), call.forced_path
        )
        collector = RequestOutputCollector(request.params.output_kind, request.request_id)
        sequence_ids = self._expect(request, collector)
        latency = RequestLatency(call.arrived_at)
        try:
            async with aclosing(session.run()) as deltas:
                async for delta in deltas:
                    call.path = session.path
                    latency.released(delta, call.path or "none", time.monotonic())
                    self._outputs.process_outputs([self._to_engine_output(sequence_ids[delta.sequence], delta)])
                    if (output := collector.get_nowait()) is not None:
                        yield cast(RequestOutput, output)
        except ServingError as error:
            call.error = error
            raise GenerationError(str(error)) from error
        finally:
            latency.ended(call.path or "none")
            self._outputs.abort_requests(sequence_ids, internal=True)

    def _processed(self, request_id: str, prompt: Any, sampling_params: SamplingParams) -> EngineCoreRequest:
        request = self.input_processor.process_inputs(
            request_id, prompt, sampling_params, supported_tasks=("generate",)
        )
        if request.prompt_token_ids is None or request.mm_features:
            raise VLLMClientError("only text prompts are supported")
        self.input_processor.assign_request_id(request)
        return request

    def _expect(self, request: EngineCoreRequest, collector: RequestOutputCollector) -> list[str]:
        """Prepare detokenization of the request's sequences; returns their ids by index."""
        if request.params.n == 1:
            self._outputs.add_request(request, None, None, 0, collector)
            return [request.request_id]
        parent = ParentRequest(request)
        ids = []
        for index in range(request.params.n):
            child = copy(request)
            child.request_id, child.sampling_params = parent.get_child_info(index)
            self._outputs.add_request(child, None, parent, index, collector)
            ids.append(child.request_id)
        return ids

    def _to_engine_output(self, sequence_id: str, delta: TokenDelta) -> EngineCoreOutput:
        output = self._decoder.decode(delta.logprobs) if delta.logprobs else EngineCoreOutput("", [])
        output.request_id = sequence_id
        output.new_token_ids = list(delta.token_ids)
        output.finish_reason = delta.finish_reason and EngineFinishReason[delta.finish_reason.name]
        output.stop_reason = delta.stop_reason
        if (sources := delta.prompt_sources) is not None:
            output.prefill_stats = PrefillStats(num_cached_tokens=sources.local + sources.pulled)
        return cast(EngineCoreOutput, output)


def _arguments(config: AppConfig) -> argparse.Namespace:
    """vLLM's server arguments: its defaults, the shared engine arguments, and what the ingress configures."""
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    ingress = config.ingress
    settings = {
        **config.shared_engine,
        "model": resolve_model(config.model),
        "served_model_name": [config.model_name],
        "tool_call_parser": ingress.tool_call_parser,
        "enable_auto_tool_choice": ingress.tool_call_parser is not None,
        "chat_template": ingress.chat_template,
        "enable_prompt_tokens_details": True,
    }
    if ingress.reasoning_parser is not None:
        settings["reasoning_parser"] = ingress.reasoning_parser
        arguments.structured_outputs_config.reasoning_parser = ingress.reasoning_parser
    for name, value in settings.items():
        setattr(arguments, name, value)
    return arguments


def _generate_request(
    request: EngineCoreRequest, reasoning_ended: bool | None, reasoning_parser_kwargs: dict[str, Any] | None
) -> GenerateRequest:
    params = request.params
    return GenerateRequest(
        request_id=RequestId(str(request.external_req_id)),
        prompt_token_ids=request.prompt_token_ids or [],
        sampling_params=encode_sampling_params(params),
        num_sequences=params.n,
        needs_prompt_logprobs=params.prompt_logprobs is not None,
        reasoning_ended=reasoning_ended,
        reasoning_parser_kwargs=reasoning_parser_kwargs,
    )


def _validated(model: type[BaseModel], body: Any) -> Any:
    """The body as vLLM's request model, with nothing in it that a client may not set."""
    try:
        return model.model_validate(check_fields(body, frozenset(model.model_fields)))
    except ValidationError as error:
        first = error.errors()[0]
        param = _path_in(body, first["loc"])
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        raise InvalidRequest(f"{first['msg']} (at {param or 'the request'})", param, code) from error
    except VLLMClientError as error:
        raise _serving_error(error) from error
    except (AttributeError, KeyError, TypeError) as error:  # vLLM's own validators on a value of the wrong type
        raise InvalidRequest(f"a field of the request has a wrong type ({error})", None, "invalid_type") from error


def _path_in(body: Any, loc: tuple[int | str, ...]) -> str | None:
    """Where pydantic found an error, without the names that it gives to the branches of a union."""
    path, last = [], len(loc) - 1
    for i, part in enumerate(loc):
        is_there = part in body if isinstance(body, dict) else isinstance(body, list) and isinstance(part, int)
        if is_there:
            path.append(str(part))
            body = body[part]
        elif i == last and isinstance(body, dict):  # a missing field
            path.append(str(part))
    return ".".join(path) or None


def _serving_error(error: Exception) -> ServingError:
    if isinstance(error, VLLMNotFoundError):
        return NotFound(str(error))
    if isinstance(error, GracefulHTTPError):
        return Overloaded(str(error), retry_after_s=1.0)
    if isinstance(error, GenerationError):
        return GenerationFailed(str(error), "unknown")
    return _invalid(str(error), getattr(error, "parameter", None))


def _error_of_response(response: ErrorResponse) -> ServingError:
    error = response.error
    if error.code == NotFound.http_status:
        return NotFound(error.message, error.param, "model_not_found" if error.param == "model" else None)
    if error.code >= ServingError.http_status:
        return ServingError(error.message)
    return _invalid(error.message, error.param)


def _invalid(message: str, param: str | None) -> InvalidRequest:
    too_long = "maximum context length" in message or "max_model_len" in message
    return InvalidRequest(message, param, "context_length_exceeded" if too_long else "invalid_value")


def error_in_frame(frame: str, call: Call) -> ServingError | None:
    """The error that an SSE frame of vLLM's serving code reports, if it does."""
    if not frame.startswith('data: {"error"'):
        return None
    if call.error is not None:
        return call.error
    response = msgspec.json.decode(frame.removeprefix("data: "))
    return _error_of_response(ErrorResponse.model_validate(response))

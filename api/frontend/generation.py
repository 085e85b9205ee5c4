"""One HTTP request and the generations that it asks the cluster for.

vLLM's serving code runs between the HTTP request and its generations, and passes no object of ours through. The context
variable `CALL` connects the two.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
from vllm.exceptions import GenerationError, VLLMClientError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.structured_output.request import get_structured_output_key

from api.frontend.vllm_errors import serving_error
from api.safety.screening import Screening
from api.structured.compilers import Compilers
from cluster import metrics
from cluster.engine.block_hashes import BlockHasher
from cluster.engine.sampling_params import encode_sampling_params, is_resumable, is_verifiable
from cluster.errors import UNFORESEEN, ConstraintFailed, InvalidRequest, ServingError
from cluster.messages.generation import GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import RequestId
from cluster.messages.placement import Placement
from router.session.receipt import Terms
from router.session.session import Session

logger = logging.getLogger("baton.ingress")

SessionFactory = Callable[[GenerateRequest, Terms], Session]


class Call:
    """One HTTP request that generates, with what is known of it so far."""

    def __init__(self, *, tenant: str = "", is_own: bool = False, **terms: Any) -> None:
        """`tenant` is the tenant of the request: only requests of the same tenant hit the KV blocks of its prompt.
        `is_own`: whether Baton itself reads the answer (a title, a summary), and no client. `terms` are fields of
        `Terms` (router/session/receipt.py).
        """
        self.id = uuid.uuid4().hex
        self.terms = Terms(arrived_at=asyncio.get_running_loop().time(), **terms)
        self.tenant = tenant
        self.is_own = is_own
        self.placement: Placement | None = None
        """Where the request runs, why, and what is expected. Set with the first token."""
        self.prompt_sources: PromptTokenSources | None = None
        """The sources of the prompt's KV blocks on the worker that generated the first token, set with that token."""
        self.error: ServingError | None = None
        """The error that ended a generation. vLLM's serving code passes on only its message."""
        self.generations: list[Generation] = []
        """One generation per prompt, added when vLLM has rendered the request."""
        self.has_tools = False
        """Whether the request offers tools. If so, vLLM looks for tool calls in the generated text."""
        self.screening: Screening | None = None
        """What the safety policy of the tenant lets pass; None if it screens nothing."""

    def again(self) -> "Call":
        """A new call for another try of the same request. The new call arrives now."""
        call = Call(tenant=self.tenant, is_own=self.is_own)
        call.terms = msgspec.structs.replace(self.terms, arrived_at=call.terms.arrived_at)
        return call


CALL: ContextVar[Call] = ContextVar("call")


def constraint_in(params: Any) -> tuple[str, str]:
    """The kind of a constraint (the name of vLLM's `StructuredOutputOptions`, in lower case) and its text. Raises
    InvalidRequest.
    """
    try:
        kind, spec = get_structured_output_key(params)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"structured_outputs: {error}", "structured_outputs", "invalid_value") from error
    return kind.name.lower(), spec


class Generation:
    """One rendered prompt and the session that answers it. A generation can be consumed once."""

    def __init__(
        self,
        call: Call,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        reasoning_ended: bool | None,
        reasoning_parser_kwargs: dict[str, Any] | None,
    ) -> None:
        self.params = params
        self._call = call
        self._prompt = prompt
        self._request_id = request_id
        self._reasoning_ended = reasoning_ended
        self._reasoning_parser_kwargs = reasoning_parser_kwargs

    @property
    def has_tools(self) -> bool:
        return self._call.has_tools

    @property
    def screening(self) -> Screening | None:
        return self._call.screening

    def processed(self, processor: InputProcessor) -> EngineCoreRequest:
        """The prompt as a request to the engine. Raises GenerationError if `InputProcessor` refuses the prompt or its
        sampling parameters; `Call.error` then has the reason.
        """
        try:
            request = processor.process_inputs(
                self._request_id, self._prompt, self.params, supported_tasks=("generate",)
            )
            if request.prompt_token_ids is None or request.mm_features:
                raise VLLMClientError("only text prompts are supported")
        except VLLMClientError as error:
            self._call.error = serving_error(error)
            raise GenerationError(str(error)) from error  # vLLM's serving code does not log a GenerationError
        processor.assign_request_id(request)
        return request

    async def start(
        self, request: EngineCoreRequest, hasher: BlockHasher, compilers: Compilers, start_session: SessionFactory
    ) -> Session:
        """Start the session that answers the processed request. Raises ServingError."""
        call = self._call
        if (constraint := request.params.structured_outputs) is not None:
            await compilers.check(*constraint_in(constraint), call.tenant)
        generate = self._to_generate_request(request)
        block_hashes = await hasher.of_prompt(generate.prompt_token_ids, generate.cache_salt)
        return start_session(generate, msgspec.structs.replace(call.terms, block_hashes=block_hashes))

    def note(self, session: Session, delta: TokenDelta) -> None:
        """Keep in the call where a delta was generated, and the first sources of its prompt."""
        self._call.placement = session.placement
        self._call.prompt_sources = self._call.prompt_sources or delta.prompt_sources

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Turn failures of the context into a GenerationError, which vLLM's serving code passes on, and keep the cause
        in the call.
        """
        call = self._call
        try:
            yield
        except GenerationError:
            raise
        except ServingError as error:
            if isinstance(error, ConstraintFailed):
                metrics.CONSTRAINTS.labels("ended").inc()
            call.error = error
            raise GenerationError(str(error)) from error
        except Exception as error:
            logger.exception("a generation failed")
            call.error = ServingError(UNFORESEEN)
            raise GenerationError(UNFORESEEN) from error

    def _to_generate_request(self, request: EngineCoreRequest) -> GenerateRequest:
        params = request.params
        return GenerateRequest(
            request_id=RequestId(str(request.external_req_id)),
            prompt_token_ids=request.prompt_token_ids or [],
            sampling_params=encode_sampling_params(params),
            cache_salt=self._call.tenant or None,
            num_sequences=params.n,
            max_output_tokens=params.max_tokens,
            needs_prompt_logprobs=params.prompt_logprobs is not None,
            is_resumable=is_resumable(params),
            is_verifiable=is_verifiable(params),
            reasoning_ended=self._reasoning_ended,
            reasoning_parser_kwargs=self._reasoning_parser_kwargs,
        )

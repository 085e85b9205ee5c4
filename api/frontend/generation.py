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
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.structured_output.request import get_structured_output_key

from api.charging.charge import RequestCharge
from api.frontend.public_prefixes import PublicPrefixes
from api.frontend.reasoning_counter import ReasoningCounter
from api.frontend.vllm_errors import serving_error
from api.safety.screening import Screening
from api.structured.compilers import Compilers
from cluster.engine.block_hashes import BlockHasher
from cluster.engine.sampling_params import encode_sampling_params, is_resumable, is_verifiable
from cluster.errors import UNFORESEEN, ConstraintFailed, InvalidRequest, ServingError
from cluster.messages.generation import GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import RequestId, SloClass
from cluster.messages.placement import Placement
from cluster.metrics.requests import CONSTRAINTS
from router.session.receipt import RequestObserver, Terms
from router.session.session import Session

logger = logging.getLogger("baton.ingress")

SessionFactory = Callable[[GenerateRequest, Terms, RequestObserver | None], Session]
"""Makes the session of a request. The observer is None for a request that nobody is charged for."""


class Call:
    """One HTTP request that generates, with what is known of it so far."""

    def __init__(
        self,
        *,
        tenant: str = "",
        shares_prefixes: bool = False,
        charge: RequestCharge | None = None,
        is_own: bool = False,
        **terms: Any,
    ) -> None:
        """`tenant` is the tenant of the request: only requests of the same tenant hit the KV blocks of its prompt.
        `shares_prefixes`: whether the tenant has opted into sharing those of public prefixes with other tenants.
        `charge`: what the request may use, and what it has used; None where nothing is recorded.
        `is_own`: whether Baton itself reads the answer (a title, a summary), and no client. `terms` are fields of
        `Terms` (router/session/receipt.py).
        """
        self.id = uuid.uuid4().hex
        self.terms = Terms(arrived_at=asyncio.get_running_loop().time(), **terms)
        self.tenant = tenant
        self.shares_prefixes = shares_prefixes
        self.is_own = is_own
        self.charge = charge
        self.placement: Placement | None = None
        """Where the request runs, why, and what is expected. Set with the first token."""
        self.prompt_sources: PromptTokenSources | None = None
        """The sources of the prompt's KV blocks on the worker that generated the first token, set with that token."""
        self.num_prompt_tokens = 0
        """Tokens of the prompt that was rendered last, in number. 0 before."""
        self.error: ServingError | None = None
        """The error that ended a generation. vLLM's serving code passes on only its message."""
        self.generations: list[Generation] = []
        """One generation per prompt, added when vLLM has rendered the request."""
        self.sessions: list[Session] = []
        """The sessions of a request that offers tools, until its answer is complete."""
        self.has_tools = False
        """Whether the request offers tools. If so, vLLM looks for tool calls in the generated text."""
        self.screening: Screening | None = None
        """What the safety policy of the tenant lets pass; None if it screens nothing."""
        self.reasoning: ReasoningCounter | None = None
        """Counts the reasoning in the answer; None if no reasoning is told apart."""

    def awaits_tools(self, group: int) -> None:
        """The answer has called tools of this group (api/frontend/tool_waits.py)."""
        for session in self.sessions:
            session.await_tools(group)

    def again(self) -> "Call":
        """A new call for another try of the same request. The new call arrives now."""
        charge = None if self.charge is None else self.charge.again()
        call = Call(tenant=self.tenant, shares_prefixes=self.shares_prefixes, charge=charge, is_own=self.is_own)
        call.terms = msgspec.structs.replace(self.terms, arrived_at=call.terms.arrived_at)
        return call

    def beside(self, slo_class: SloClass) -> "Call":
        """A new call for what Baton has the model write after this one, for nobody who waits. Its client is charged for
        it. The new call arrives now, in this class, without the objectives that the client has set.
        """
        terms = self.terms
        return Call(
            tenant=self.tenant,
            charge=None if self.charge is None else self.charge.beside(),
            is_own=True,
            slo_class=slo_class,
            tenant_weight=terms.tenant_weight,
            http_request=terms.http_request,
            trace=terms.trace,
        )


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


def request_of(
    call: Call, processor: InputProcessor, prompt: Any, params: SamplingParams, id: str
) -> EngineCoreRequest:
    """A rendered prompt as a request to the engine. `id`: of vLLM's serving code. Raises GenerationError if
    `InputProcessor` refuses the prompt or its sampling parameters; `Call.error` then has the reason.
    """
    try:
        request = processor.process_inputs(id, prompt, params, supported_tasks=("generate",))
        if request.prompt_token_ids is None or request.mm_features:
            raise VLLMClientError("only text prompts are supported")
    except VLLMClientError as error:
        call.error = serving_error(error)
        raise GenerationError(str(error)) from error  # vLLM's serving code does not log a GenerationError
    processor.assign_request_id(request)
    return request


class Generation:
    """One rendered prompt and the session that answers it. A generation can be consumed once."""

    def __init__(
        self,
        call: Call,
        params: SamplingParams,
        request: EngineCoreRequest,
        reasoning_ended: bool | None,
        reasoning_parser_kwargs: dict[str, Any] | None,
    ) -> None:
        """`params`: as the client has set them. `request`: the prompt with them, as `request_of` has made it."""
        self.params = params
        self.request = request
        self._call = call
        self._rendered_at = asyncio.get_running_loop().time()
        self._reasoning_ended = reasoning_ended
        self._reasoning_parser_kwargs = reasoning_parser_kwargs
        self.detokenizers: list[IncrementalDetokenizer] = []
        """The detokenizer of each sequence, which has the tokens of the answer. Empty for a plain stream."""

    @property
    def has_tools(self) -> bool:
        return self._call.has_tools

    @property
    def screening(self) -> Screening | None:
        return self._call.screening

    async def start(
        self,
        hasher: BlockHasher,
        public_prefixes: PublicPrefixes,
        compilers: Compilers,
        start_session: SessionFactory,
    ) -> Session:
        """Start the session that answers the prompt, which must be run. The request is charged last: no check may come
        after. Raises ServingError.
        """
        call, constraint = self._call, self.request.params.structured_outputs
        if constraint is not None:
            await compilers.check(*constraint_in(constraint), call.tenant)
        generate = self._to_generate_request(self.request, public_prefixes)
        call.num_prompt_tokens = len(generate.prompt_token_ids)
        block_hashes = await hasher.of_prompt(
            generate.prompt_token_ids, generate.cache_salt, generate.num_public_tokens
        )
        terms = msgspec.structs.replace(call.terms, block_hashes=block_hashes, rendered_at=self._rendered_at)
        session = await self._started(generate, terms, start_session)
        if call.has_tools:
            call.sessions.append(session)
        return session

    async def _started(self, generate: GenerateRequest, terms: Terms, start_session: SessionFactory) -> Session:
        call = self._call
        if call.charge is None:
            return start_session(generate, terms, None)
        metered = await call.charge.begin(generate, terms, self._num_reasoning_tokens)
        try:
            session = start_session(generate, terms, metered)
        except BaseException:
            metered.withdraw()
            raise
        if (reserving := call.charge.reserving) is not None:
            session.release_after(reserving)
        return session

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
                CONSTRAINTS.labels("ended").inc()
            call.error = error
            raise GenerationError(str(error)) from error
        except Exception as error:
            logger.exception("a generation failed")
            call.error = ServingError(UNFORESEEN)
            raise GenerationError(UNFORESEEN) from error

    def _num_reasoning_tokens(self) -> int:
        """Tokens of the reasoning in what was generated so far."""
        if self._call.reasoning is None:
            return 0
        prompt = list(self.request.prompt_token_ids or ())
        return sum(self._call.reasoning.count(prompt, one.output_token_ids) for one in self.detokenizers)

    def _to_generate_request(self, request: EngineCoreRequest, public_prefixes: PublicPrefixes) -> GenerateRequest:
        params, prompt = request.params, request.prompt_token_ids or []
        may_share = self._call.shares_prefixes and self._call.tenant
        return GenerateRequest(
            request_id=RequestId(str(request.external_req_id)),
            prompt_token_ids=prompt,
            sampling_params=encode_sampling_params(params),
            cache_salt=self._call.tenant or None,
            num_public_tokens=public_prefixes.num_public(prompt) if may_share else 0,
            num_sequences=params.n,
            max_output_tokens=params.max_tokens,
            needs_prompt_logprobs=params.prompt_logprobs is not None,
            is_resumable=is_resumable(params),
            is_verifiable=is_verifiable(params),
            reasoning_ended=self._reasoning_ended,
            reasoning_parser_kwargs=self._reasoning_parser_kwargs,
        )

"""Engines whose tokens a test chooses, behind vLLM's front half with the demo model."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import numpy as np
import torch
from msgspec.structs import replace
from tokenizers import Tokenizer
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists, LogprobsTensors
from vllm.v1.serial_utils import MsgpackEncoder

from api.frontend.frontend import Frontend
from api.frontend.generation import SessionFactory
from api.safety.audit.decision_record import AuditPort
from api.safety.audit.event import SafetyEvent
from cluster.config.application import parse
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Path
from cluster.repository import REPO_ROOT
from router.session.receipt import RequestObserver, RouteReceipt, Terms
from tests.component.app_with_fakes import a_placement
from tests.unit.factories import a_receipt
from tests.unit.usage_rows import an_attempt

MODEL = "conf/models/baton-demo"
END_OF_TURN = 2


class FakeEngines:
    """Stands for the workers: each session yields `deltas`, then fails with `error` if there is one."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(REPO_ROOT / MODEL / "tokenizer.json"))
        self.reset()

    async def frontend(
        self,
        max_model_len: int,
        safety: dict[str, Any] | None = None,
        audit: AuditPort | None = None,
        public_prefixes: dict[str, Any] | None = None,
        **ingress: str,
    ) -> Frontend:
        """Without `audit`, its decisions on safety are in `events`."""
        engine = {"max_model_len": max_model_len, "dtype": "bfloat16", "enforce_eager": True}
        sections = {"ingress": ingress, "safety": safety or {}, "public_prefixes": public_prefixes or {}}
        config = parse({"model": MODEL, "engine": engine, **sections})
        start_session = cast(SessionFactory, self.start_session)  # its sessions are fakes
        return await Frontend.start(config, start_session, audit or FakeAudit(self))

    def reset(self) -> None:
        self.says("Paris is nice.")
        self.error: Exception | None = None
        self.first_token_s = 0.0
        """Time until the first token, in seconds."""
        self.requests: list[GenerateRequest] = []
        self.block_hashes: list[list[bytes]] = []
        self.forced_paths: list[Path | None] = []
        self.groups: list[int] = []
        """Groups of the tools that answers have called, as their workers are told."""
        self.num_ended = 0
        self.events: list[SafetyEvent] = []
        self.has_event = asyncio.Event()
        self.audit_is_full = False

    def says(self, text: str, finish: FinishReason = FinishReason.STOP, stop_reason: str | None = None) -> None:
        self.deltas = self.sequence(0, text, finish, stop_reason)

    def sequence(
        self, index: int, text: str, finish: FinishReason = FinishReason.STOP, stop_reason: str | None = None
    ) -> list[TokenDelta]:
        """One delta per token. A model that stops by itself ends with its end token."""
        tokens = self.tokenizer.encode(text).ids
        if finish is FinishReason.STOP and stop_reason is None:
            tokens.append(END_OF_TURN)
        deltas = [TokenDelta(index, [token]) for token in tokens]
        deltas[0] = TokenDelta(index, tokens[:1], prompt_sources=PromptTokenSources(3, 2, 0))
        deltas[-1] = TokenDelta(index, tokens[-1:], finish_reason=finish, stop_reason=stop_reason)
        return deltas

    def start_session(self, request: GenerateRequest, terms: Terms, observer: RequestObserver | None) -> "FakeSession":
        self.requests.append(request)
        self.block_hashes.append(terms.block_hashes)
        self.forced_paths.append(terms.path)
        return FakeSession(self, self._deltas_of(request), len(request.prompt_token_ids), observer)

    def _deltas_of(self, request: GenerateRequest) -> list[TokenDelta]:
        """`deltas`. Where a test has told only those of the first sequence, the others say the same."""
        if any(delta.sequence for delta in self.deltas):
            return self.deltas
        return [replace(delta, sequence=i) for i in range(request.num_sequences) for delta in self.deltas]


class FakeAudit:
    """Stores nothing, and what it is given is durable at once."""

    def __init__(self, engines: FakeEngines) -> None:
        self._engines = engines

    def is_full(self, tenant: str) -> bool:
        return self._engines.audit_is_full

    def note(self, event: SafetyEvent) -> "FakeAudit | None":
        if self._engines.audit_is_full:
            return None
        self._engines.events.append(event)
        self._engines.has_event.set()
        return self

    async def is_durable(self) -> bool:
        return True


class FakeSession:
    placement = a_placement(Path.PREFILL_DECODE)

    def __init__(
        self, engines: FakeEngines, deltas: list[TokenDelta], num_prompt_tokens: int, observer: RequestObserver | None
    ) -> None:
        self._engines = engines
        self._deltas = deltas
        self._num_prompt_tokens = num_prompt_tokens
        self._observer = observer
        self._granted: asyncio.Future[Any] | None = None

    def release_after(self, granted: "asyncio.Future[Any]") -> None:
        self._granted = granted

    def await_tools(self, group: int) -> None:
        self._engines.groups.append(group)

    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        num_delivered = 0
        try:
            await asyncio.sleep(self._engines.first_token_s)
            if self._granted is not None:
                await self._granted
            for delta in self._deltas:
                num_delivered += len(delta.token_ids)
                yield delta
            if self._engines.error is not None:
                raise self._engines.error
        finally:
            self._engines.num_ended += 1
            receipt = self._receipt(num_delivered)  # which real sessions make, too, where nobody asks for it
            if self._observer is not None:
                self._observer.closed(receipt)

    def _receipt(self, num_delivered: int) -> RouteReceipt:
        return a_receipt(
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=num_delivered,
            attempts=(an_attempt(num_delivered=num_delivered, num_generated=num_delivered),),
        )


def with_logprobs(delta: TokenDelta, other: int, prompt: Sequence[int] = ()) -> TokenDelta:
    """Log-probabilities of tokens as an engine reports them, with one alternative each."""
    (token,) = delta.token_ids
    lists = LogprobsLists(np.array([[token, other]]), np.array([[-0.1, -2.5]], dtype=np.float32), np.array([1]))
    of_prompt = None
    if prompt:
        told = torch.tensor([[token, other] for token in prompt[1:]])
        of_prompt = LogprobsTensors(
            told, torch.tensor([[-0.1, -2.5]] * len(told)), torch.ones(len(told), dtype=torch.int64)
        )
    output = EngineCoreOutput("", [], new_logprobs=lists, new_prompt_logprobs_tensors=of_prompt)
    frames = MsgpackEncoder().encode(output)
    return TokenDelta(0, [token], delta.finish_reason, logprobs=tuple(bytes(frame) for frame in frames))

"""The grammar guard of the engine's core: a slow constraint ends its own request and delays no other one.

The guard is installed in vLLM's structured output manager when the connector is made (kvtransfer/connector.py). It ends
a request whose constraint is not compiled in time, does not compile, passes a limit of its parser, or takes more CPU
time than the request has. The request ends after the token of the current step: vLLM ends a request whose grammar
refuses a token. The stop reason of that output carries the cause, and cluster/engine/token_tap.py makes an error of it.
"""

import logging
import time
from concurrent.futures import Future
from typing import Any
from weakref import WeakValueDictionary

from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from cluster.engine_core.grammar_backend import BoundedGrammar, GrammarBackend
from cluster.engine_core.grammar_budget import BURSTS_TOGETHER, Allowance, GrammarBudget, GrammarEnd, StepSpending

logger = logging.getLogger("baton.grammars")

_FULL_MASK = -1
"""A word of the mask with all bits set, which allows every token."""

_accept_tokens = StructuredOutputManager.accept_tokens
_grammar_bitmask = StructuredOutputManager.grammar_bitmask


def install(budget: GrammarBudget) -> None:
    """Install a guard in all managers of this process. An engine's core has one manager. May be called again."""
    guard = GrammarGuard(budget)

    def accept_tokens(manager: Any, request: Request, new_token_ids: list[int]) -> bool:
        if _accept_tokens(manager, request, new_token_ids):
            return True
        request.stop_reason = guard.why_ended(request)
        return False

    def grammar_bitmask(manager: Any, requests: Any, request_ids: list[str], drafts: Any) -> Any:
        guard.num_requests = len(request_ids)
        guard.spending.begin()
        return _grammar_bitmask(manager, requests, request_ids, drafts)

    StructuredOutputManager.grammar_init = guard.begin
    StructuredOutputManager.accept_tokens = accept_tokens
    StructuredOutputManager.grammar_bitmask = grammar_bitmask


class GrammarGuard:
    """Compiles and meters the grammars of one engine."""

    def __init__(self, budget: GrammarBudget) -> None:
        self.budget = budget
        self.num_requests = 1
        """Requests with a constraint in the step that is being prepared."""
        self.spending = StepSpending(budget.burst_s)
        """What grammars have taken in that step."""
        self._together: WeakValueDictionary[tuple[Any, str], Allowance] = WeakValueDictionary()
        """Allowances by constraint, for as long as a request has the constraint."""

    def together(self, key: tuple[Any, str]) -> Allowance:
        """The allowance of all requests with this constraint. `key`: its kind and its text."""
        return self._together.setdefault(key, Allowance(BURSTS_TOGETHER * self.budget.burst_s))

    @property
    def begin(self) -> Any:
        """A replacement of `StructuredOutputManager.grammar_init`, which runs in the thread that reads requests."""

        def grammar_init(manager: Any, request: Request) -> None:
            if request.structured_output_request is None:
                return
            if manager.backend is None:
                vocab_size = manager.vllm_config.model_config.get_vocab_size()
                manager.backend = GrammarBackend(manager.vllm_config, manager.tokenizer, vocab_size)
            compiling = Compiling(time.monotonic() + self.budget.compile_timeout_s)
            request.structured_output_request.grammar = compiling
            manager.executor.submit(self._compile, manager.backend, request, compiling)

        return grammar_init

    def why_ended(self, request: Request) -> str | None:
        """Why the guard has ended a request. None if the grammar has refused a token that it had allowed, which is a
        fault of the engine.
        """
        grammar = request.structured_output_request.grammar
        end = grammar.end if isinstance(grammar, MeteredGrammar | FailedGrammar) else None
        if end is not None:
            logger.warning("request %s was ended: %s", request.request_id, end.value)
            return end.value
        return None

    def _compile(self, backend: GrammarBackend, request: Request, compiling: "Compiling") -> None:
        if request.is_finished() or compiling.is_late:
            compiling.set_result(FailedGrammar(GrammarEnd.COMPILED_TOO_LATE))
            return
        try:
            kind, spec = request.structured_output_request.structured_output_key
            stop_token_ids = request.sampling_params.all_stop_token_ids
            grammar = backend.compile_grammar(kind, spec, stop_token_ids)
        except Exception as error:
            logger.warning("the grammar of request %s: %s", request.request_id, str(error)[:200])
            compiling.set_result(FailedGrammar(GrammarEnd.NOT_COMPILED))
        else:
            compiling.set_result(MeteredGrammar(grammar, self, self.together((kind, spec))))


class Compiling(Future[StructuredOutputGrammar]):
    """A grammar that is being compiled, until a deadline. A grammar that is late has failed, even if it comes."""

    def __init__(self, due: float) -> None:
        super().__init__()
        self._due = due

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._due

    def done(self) -> bool:
        return super().done() or self.is_late

    def result(self, timeout: float | None = None) -> StructuredOutputGrammar:
        if super().done():
            return super().result(timeout)
        return FailedGrammar(GrammarEnd.COMPILED_TOO_LATE)


class MeteredGrammar(StructuredOutputGrammar):
    """A grammar whose CPU time is counted. Once it has taken too much, it refuses the next token."""

    def __init__(self, grammar: StructuredOutputGrammar, guard: GrammarGuard, together: Allowance) -> None:
        self.end: GrammarEnd | None = None
        self._grammar = grammar
        self._guard = guard
        self._allowances = Allowance(guard.budget.burst_s), together
        self._last_mask_s = float("inf")
        """CPU time of the last mask. Infinite before the first mask, whose cost is not known."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        began_at = time.thread_time()
        is_accepted = self._grammar.accept_tokens(request_id, tokens)
        self._spend(began_at)
        if isinstance(self._grammar, BoundedGrammar) and self._grammar.is_broken:
            self.end = self.end or GrammarEnd.TOO_COMPLEX
        for allowance in self._allowances:
            allowance.earn(len(tokens) * self._share_s)
        return bool(is_accepted) and self.end is None

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        began_at = time.thread_time()
        valid: list[int] = self._grammar.validate_tokens(tokens)
        self._spend(began_at)
        return valid

    def rollback(self, num_tokens: int) -> None:
        began_at = time.thread_time()
        self._grammar.rollback(num_tokens)
        self._spend(began_at)

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        if self._is_overdrawn:  # by requests with the same constraint: one more mask may take as long as theirs
            self.end = self.end or GrammarEnd.TOO_SLOW
        elif not self._guard.spending.has_room(is_cheap=self._last_mask_s <= self._share_s):
            self.end = self.end or GrammarEnd.CROWDED
        else:
            began_at = time.thread_time()
            self._grammar.fill_bitmask(bitmask, batch_index)
            self._last_mask_s = self._spend(began_at)
            return
        bitmask[batch_index].fill_(_FULL_MASK)

    def is_terminated(self) -> bool:
        return bool(self._grammar.is_terminated())

    def reset(self) -> None:
        self._grammar.reset()

    def _spend(self, began_at: float) -> float:
        seconds = time.thread_time() - began_at
        self._guard.spending.spend(seconds)
        for allowance in self._allowances:
            allowance.spend(seconds)
        if self._is_overdrawn:
            self.end = GrammarEnd.TOO_SLOW
        return seconds

    @property
    def _share_s(self) -> float:
        return self._guard.budget.share_s(self._guard.num_requests)

    @property
    def _is_overdrawn(self) -> bool:
        return any(allowance.is_overdrawn for allowance in self._allowances)


class FailedGrammar(StructuredOutputGrammar):
    """The grammar of a request that must end: it allows every token, and refuses the one that is chosen."""

    def __init__(self, end: GrammarEnd) -> None:
        self.end = end

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return False

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return []

    def rollback(self, num_tokens: int) -> None:
        pass

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        bitmask[batch_index].fill_(_FULL_MASK)

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None:
        pass

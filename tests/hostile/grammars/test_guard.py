"""In an engine's core: a constraint that is slow, late or too much for its parser ends its own request and says why."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import get_tokenizer
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

from cluster.engine_core.grammar_backend import GrammarBackend
from cluster.engine_core.grammar_budget import BURSTS_PER_STEP, BURSTS_TOGETHER, Allowance, GrammarBudget, GrammarEnd
from cluster.engine_core.grammar_guard import FailedGrammar, GrammarGuard, MeteredGrammar, install
from cluster.repository import REPO_ROOT
from tests.hostile.grammars.inputs import ENDLESS_RULES, HONEST, RECURSIVE_SUM, TWELVE_FOLD, Schema, mutual

BUDGET = GrammarBudget(step_s=0.02, burst_s=0.1, compile_timeout_s=30.0)
GUARD = GrammarGuard(BUDGET)
VOCAB = 2048
END_OF_TEXT = 0


class Burning(StructuredOutputGrammar):
    """Takes so much CPU time for each token, each mask, and each draft."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.num_rolled_back = 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        self.accept_tokens("", tokens)
        return tokens

    def rollback(self, num_tokens: int) -> None:
        self.accept_tokens("", [])
        self.num_rolled_back += num_tokens

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        self.accept_tokens("", [])

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None:
        pass


class Waiting:
    """A backend that compiles when it is told to."""

    def __init__(self) -> None:
        self.num_compiled = 0

    def compile_grammar(self, kind: Any, spec: str, stop_token_ids: Any = None) -> StructuredOutputGrammar:
        self.num_compiled += 1
        raise ValueError("nothing of this can be compiled")


class Manager:
    """What the guard reads of vLLM's."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.executor = ThreadPoolExecutor(1)


class FakeRequest:
    request_id = "r"
    stop_reason = None
    use_structured_output = True

    def __init__(self, *, is_over: bool = False) -> None:
        self._is_over = is_over
        self.sampling_params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "integer"}))
        self.structured_output_request = StructuredOutputRequest.from_sampling_params(self.sampling_params)

    def is_finished(self) -> bool:
        return self._is_over


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    options = SimpleNamespace(disable_any_whitespace=False, disable_additional_properties=False)
    config = SimpleNamespace(structured_outputs_config=options, model_config=None, speculative_config=None)
    return GrammarBackend(config, get_tokenizer(str(REPO_ROOT / "conf/models/baton-demo")), VOCAB)


def alone() -> Allowance:
    """What a request has beside its own allowance that nobody else with its constraint takes from."""
    return Allowance(BURSTS_TOGETHER * BUDGET.burst_s)


def metered(backend: GrammarBackend, **constraint: Any) -> MeteredGrammar:
    request = StructuredOutputRequest(StructuredOutputsParams(**constraint))
    kind, grammar = request.structured_output_key
    return MeteredGrammar(backend.compile_grammar(kind, grammar, {END_OF_TEXT}), GUARD, alone())


def allowed_by(grammar: StructuredOutputGrammar, mask: torch.Tensor) -> list[int]:
    grammar.fill_bitmask(mask, 0)
    bits = (mask[0].unsqueeze(1) >> torch.arange(32, dtype=torch.int32)) & 1
    return [token for token, bit in enumerate(bits.flatten().tolist()) if bit]


def test_grammar_that_is_cheap_enough_is_never_ended() -> None:
    grammar = MeteredGrammar(Burning(0.0005), GUARD, alone())
    assert all(grammar.accept_tokens("r", [1]) for _ in range(400))


@pytest.mark.parametrize(
    "step",
    [
        lambda grammar: grammar.fill_bitmask(None, 0),
        lambda grammar: grammar.accept_tokens("r", [1]),
        lambda grammar: grammar.rollback(1),
        lambda grammar: grammar.validate_tokens([1]),
    ],
    ids=["mask", "token", "rejected draft", "draft"],
)
def test_one_slow_step_ends_the_request(step: Callable[[Any], Any]) -> None:
    """Though everything else that is done for it is fast."""
    burning = Burning(1.1 * BUDGET.burst_s)
    grammar = MeteredGrammar(burning, GUARD, alone())
    step(grammar)
    burning.seconds = 0.0
    assert not grammar.accept_tokens("r", [1])
    assert grammar.end is GrammarEnd.TOO_SLOW


def test_many_steps_that_are_slower_than_the_share_end_the_request() -> None:
    grammar = MeteredGrammar(Burning(0.01), GUARD, alone())
    accepted = [grammar.accept_tokens("r", [1]) for _ in range(20)]
    assert accepted == sorted(accepted, reverse=True)
    assert accepted[0] and not accepted[-1]


def test_share_is_smaller_the_more_requests_have_grammars() -> None:
    assert BUDGET.share_s(1) == BUDGET.share_s(8) == 2 * BUDGET.share_s(16)


NUM_TOGETHER = 32


class Bare(StructuredOutputManager):
    """vLLM's, with as much as a step needs of it."""

    def __init__(self, grammar: StructuredOutputGrammar) -> None:
        self.backend = SimpleNamespace(
            compile_grammar=lambda *_: grammar,
            allocate_token_bitmask=lambda rows: torch.zeros((rows, 1), dtype=torch.int32),
        )
        self.executor = ThreadPoolExecutor(1)
        self.vllm_config = SimpleNamespace(
            num_speculative_tokens=0,
            scheduler_config=SimpleNamespace(max_num_seqs=NUM_TOGETHER),
            model_config=SimpleNamespace(is_diffusion=False),
        )
        self.fill_bitmask_parallel_threshold = 2 * NUM_TOGETHER
        self.enable_in_reasoning = True
        self._grammar_bitmask = None


def test_requests_of_one_step_divide_what_grammars_may_add_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each token takes is less than the share of one of eight, and more than the share of one of 32."""
    for name in ("grammar_init", "accept_tokens", "grammar_bitmask"):
        monkeypatch.setattr(StructuredOutputManager, name, getattr(StructuredOutputManager, name))
    install(BUDGET)
    seconds = (BUDGET.share_s(8) + BUDGET.share_s(NUM_TOGETHER)) / 2
    num_tokens = {num_requests: tokens_in_steps_of(num_requests, seconds) for num_requests in (1, NUM_TOGETHER)}
    assert num_tokens[1] == 200
    assert num_tokens[NUM_TOGETHER] < 150


def tokens_in_steps_of(num_requests: int, seconds: float) -> int:
    """Until the request is ended, and 200 at most: each takes so long, and the others of its steps take nothing."""
    burning = Burning(0.0)
    manager, requests = Bare(burning), {str(number): FakeRequest() for number in range(num_requests)}
    for request in requests.values():
        manager.grammar_init(request)
    manager.executor.shutdown(wait=True)
    for num_tokens in range(200):
        burning.seconds = 0.0
        manager.grammar_bitmask(requests, list(requests), {})
        burning.seconds = seconds
        if not manager.accept_tokens(requests["0"], [1]):
            return num_tokens
    return 200


def test_allowance_never_grows_beyond_the_burst() -> None:
    allowance = Allowance(1.0)
    for _ in range(100):
        allowance.earn(1.0)
    allowance.spend(1.5)
    assert allowance.is_overdrawn
    allowance.earn(10.0)
    assert allowance.is_overdrawn


def test_constraint_that_does_not_compile_fails_its_request_with_the_reason() -> None:
    request, manager = FakeRequest(), Manager(Waiting())
    GUARD.begin(manager, request)
    manager.executor.shutdown(wait=True)
    grammar = request.structured_output_request.grammar
    assert isinstance(grammar, FailedGrammar)
    assert not grammar.accept_tokens("r", [1])
    assert GUARD.why_ended(request) == GrammarEnd.NOT_COMPILED


def test_constraint_that_waits_too_long_to_be_compiled_fails_its_request_and_is_not_compiled() -> None:
    late = GrammarGuard(GrammarBudget(step_s=0.02, burst_s=0.1, compile_timeout_s=-1.0))
    request, backend = FakeRequest(), Waiting()
    manager = Manager(backend)
    late.begin(manager, request)
    assert request.structured_output_request.is_grammar_ready
    manager.executor.shutdown(wait=True)
    assert late.why_ended(request) == GrammarEnd.COMPILED_TOO_LATE
    assert backend.num_compiled == 0


def test_constraint_of_a_request_that_was_aborted_is_not_compiled() -> None:
    backend = Waiting()
    manager = Manager(backend)
    GUARD.begin(manager, FakeRequest(is_over=True))
    manager.executor.shutdown(wait=True)
    assert backend.num_compiled == 0


def test_failed_grammar_allows_every_token_until_its_request_ends(backend: GrammarBackend) -> None:
    mask = torch.zeros_like(backend.allocate_token_bitmask(1))
    assert allowed_by(FailedGrammar(GrammarEnd.NOT_COMPILED), mask) == list(range(VOCAB))


@pytest.mark.parametrize("schema", HONEST.values(), ids=HONEST)
def test_honest_schema_is_followed(backend: GrammarBackend, schema: Schema) -> None:
    grammar = metered(backend, json=schema)
    mask = backend.allocate_token_bitmask(1)
    allowed = allowed_by(grammar, mask)
    assert allowed and len(allowed) < VOCAB
    assert grammar.accept_tokens("r", allowed[-1:])


@pytest.mark.parametrize(
    "constraint",
    [
        {"grammar": RECURSIVE_SUM},
        {"grammar": TWELVE_FOLD},
        {"regex": "((a+)+)+b"},
        {"regex": "(([a-z]{1,50}){1,50}){1,50}"},
        {"regex": "(.*a.{200})*"},
        {"json": mutual(90)},
    ],
    ids=str,
)
def test_bomb_costs_no_more_than_its_request_may(backend: GrammarBackend, constraint: dict[str, Any]) -> None:
    grammar = metered(backend, **constraint)
    mask = backend.allocate_token_bitmask(1)
    began_at, num_tokens = time.thread_time(), 0
    for _ in range(300):
        allowed = [token for token in allowed_by(grammar, mask) if token != END_OF_TEXT]
        if not allowed or not grammar.accept_tokens("r", [allowed[num_tokens % len(allowed)]]):
            break
        num_tokens += 1
    spent_s = time.thread_time() - began_at
    bound_s = BUDGET.burst_s + (num_tokens + 1) * BUDGET.share_s(1)
    assert grammar.end in (None, GrammarEnd.TOO_SLOW, GrammarEnd.TOO_COMPLEX)
    assert spent_s < bound_s + 0.001 * (num_tokens + 1) + 0.3, f"{spent_s:.2f} s for {num_tokens} tokens"


LIMITS = {
    "items of the parser in a step": ({"grammar": ENDLESS_RULES}, 1),
    "fuel of the lexer in a step": ({"regex": "(([a-z]{1,50}){1,50}){1,50}"}, 50),
    "states of the lexer": ({"regex": "(.*a.{200})*"}, 1000),
}
"""What passes each limit, and within how many tokens."""


@pytest.mark.parametrize(("constraint", "within"), LIMITS.values(), ids=LIMITS)
def test_constraint_that_passes_a_limit_of_the_parser_ends_its_request_soon(
    backend: GrammarBackend, constraint: dict[str, str], within: int
) -> None:
    """Whatever its allowance is. Without the limit the first takes 4 s for a token, and the second 0.2 s for many."""
    guard = GrammarGuard(GrammarBudget(step_s=100.0, burst_s=1000.0, compile_timeout_s=30.0))
    request = StructuredOutputRequest(StructuredOutputsParams(**constraint))
    compiled = backend.compile_grammar(
        request.structured_output_key[0], request.structured_output_key[1], {END_OF_TEXT}
    )
    grammar = MeteredGrammar(compiled, guard, Allowance(1000.0))
    mask, rng, num_tokens = backend.allocate_token_bitmask(1), random.Random(0), 0
    began_at = time.thread_time()
    while num_tokens < within:
        allowed = [token for token in allowed_by(grammar, mask) if token != END_OF_TEXT]
        if not grammar.accept_tokens("r", [rng.choice(allowed or [END_OF_TEXT])]):
            break
        num_tokens += 1
    assert grammar.end is GrammarEnd.TOO_COMPLEX
    assert time.thread_time() - began_at < 1.0


def test_many_with_one_slow_constraint_take_no_more_than_a_few_of_them() -> None:
    """In one step, in which none of them is refused a token yet."""
    guard = GrammarGuard(BUDGET)
    together = guard.together(("json", "slow"))
    slow = [MeteredGrammar(Burning(1.1 * BUDGET.burst_s), guard, together) for _ in range(5 * BURSTS_TOGETHER)]
    other = MeteredGrammar(Burning(0.0005), guard, guard.together(("json", "fast")))
    mask = torch.zeros((len(slow) + 1, VOCAB // 32), dtype=torch.int32)
    began = time.thread_time()
    for index, grammar in enumerate([*slow, other]):
        grammar.fill_bitmask(mask, index)
    assert time.thread_time() - began < 2 * BURSTS_TOGETHER * BUDGET.burst_s
    assert all(grammar.end is GrammarEnd.TOO_SLOW for grammar in slow)
    assert other.accept_tokens("r", [1])


def fill_all(guard: GrammarGuard, grammars: list[MeteredGrammar]) -> float:
    """One step. Returns what it took, in seconds of CPU time."""
    mask = torch.zeros((len(grammars), VOCAB // 32), dtype=torch.int32)
    guard.spending.begin()
    began = time.thread_time()
    for index, grammar in enumerate(grammars):
        grammar.fill_bitmask(mask, index)
    return time.thread_time() - began


def test_many_different_slow_constraints_take_no_more_than_a_few_of_them() -> None:
    """As many as an engine runs at once, each within its burst: a step of 26 s would be taken for a hang."""
    guard = GrammarGuard(BUDGET)
    slow = [MeteredGrammar(Burning(0.9 * BUDGET.burst_s), guard, alone()) for _ in range(256)]
    assert fill_all(guard, slow) < 1.2 * BURSTS_PER_STEP * BUDGET.burst_s
    ended = [grammar for grammar in slow if grammar.end is not None]
    assert len(ended) >= len(slow) - BURSTS_PER_STEP - 2
    assert {grammar.end for grammar in ended} == {GrammarEnd.CROWDED}
    assert not any(grammar.accept_tokens("r", [1]) for grammar in ended[:3]), "they would go on unconstrained"


def test_cheap_ones_go_on_beside_many_slow_ones_in_one_step() -> None:
    guard = GrammarGuard(BUDGET)
    honest = [MeteredGrammar(Burning(0.0005), guard, alone()) for _ in range(20)]
    fill_all(guard, honest)
    slow = [MeteredGrammar(Burning(0.9 * BUDGET.burst_s), guard, alone()) for _ in range(3 * BURSTS_PER_STEP)]
    fill_all(guard, slow + honest)
    assert all(grammar.accept_tokens("r", [1]) for grammar in honest)


def test_constraints_that_were_cheap_and_turn_slow_at_once_are_bounded_too() -> None:
    guard = GrammarGuard(BUDGET)
    sleepers = [Burning(0.0001) for _ in range(100)]
    grammars = [MeteredGrammar(sleeper, guard, alone()) for sleeper in sleepers]
    fill_all(guard, grammars)
    for sleeper in sleepers:
        sleeper.seconds = 0.9 * BUDGET.burst_s
    assert fill_all(guard, grammars) < 2.2 * BURSTS_PER_STEP * BUDGET.burst_s


def test_next_step_has_its_own_time() -> None:
    guard = GrammarGuard(BUDGET)
    slow = [MeteredGrammar(Burning(0.9 * BUDGET.burst_s), guard, alone()) for _ in range(3 * BURSTS_PER_STEP)]
    fill_all(guard, slow)
    late = MeteredGrammar(Burning(0.0005), guard, alone())
    fill_all(guard, [late])
    assert late.accept_tokens("r", [1])


def test_constraint_is_forgotten_with_its_last_request() -> None:
    guard = GrammarGuard(BUDGET)
    grammar = MeteredGrammar(Burning(0.0), guard, guard.together(("json", "slow")))
    guard.together(("json", "slow")).spend(100.0)
    assert guard.together(("json", "slow")).is_overdrawn
    del grammar
    assert not guard.together(("json", "slow")).is_overdrawn

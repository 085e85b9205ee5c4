"""The worst constraints that the bounds admit, looked for: none costs an engine more than its request may."""

import json
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings, target
from hypothesis import strategies as st
from vllm.sampling_params import StructuredOutputsParams
from vllm.tokenizers import get_tokenizer
from vllm.v1.structured_output.request import StructuredOutputRequest

from api.wire.constraints import check_constraints
from cluster.config.structured_output import StructuredOutputConfig
from cluster.engine_core.grammar_backend import GrammarBackend
from cluster.engine_core.grammar_budget import Allowance, GrammarBudget
from cluster.engine_core.grammar_guard import GrammarGuard, MeteredGrammar
from cluster.errors import InvalidRequest
from cluster.repository import REPO_ROOT
from tests.hostile.grammars.test_guard import END_OF_TEXT, VOCAB, allowed_by

LONGEST_STEP_S = 0.25
"""CPU time of one step with one request, on a machine that does other things too."""
NUM_TOKENS = 40
GUARD = GrammarGuard(GrammarBudget(step_s=1.0, burst_s=10.0, compile_timeout_s=30.0))
"""So generous that it ends nothing: what is measured is what a single step can take."""

ATOMS = st.sampled_from(["a", ".", "[a-z]", "\\w", "(a|ab|b)", "(a|aa)", ".*a", "\\p{L}"])
TIMES = st.sampled_from(["*", "+", "?", "{1,30}", "{1,100}", "{15}", "{200}", "{1,1000}"])
REGEXES = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds(lambda regex, times: f"({regex}){times}", inner, TIMES)
        | st.builds(lambda one, other: f"{one}{other}", inner, inner)
        | st.builds(lambda one, other: f"({one}|{other})", inner, inner)
    ),
    max_leaves=6,
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer"}, {}, {"type": "number", "multipleOf": 0.01}])
    | st.builds(lambda regex: {"type": "string", "pattern": regex}, REGEXES)
    | st.builds(lambda length: {"type": "string", "maxLength": length}, st.integers(1, 100_000)),
    lambda inner: (
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.just(99))
        | st.builds(lambda branches: {"anyOf": branches * 3}, st.lists(inner, min_size=1, max_size=4))
        | st.builds(lambda branches: {"allOf": branches}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda of: {"type": "object", "properties": {f"p{i}": of for i in range(30)}}, inner)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    options = SimpleNamespace(disable_any_whitespace=False, disable_additional_properties=False)
    config = SimpleNamespace(structured_outputs_config=options, model_config=None, speculative_config=None)
    return GrammarBackend(config, get_tokenizer(str(REPO_ROOT / "conf/models/baton-demo")), VOCAB)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.builds(lambda regex: {"regex": regex}, REGEXES) | st.builds(lambda of: {"json": json.dumps(of)}, SCHEMAS),
    st.integers(0, 3),
)
def test_no_step_of_what_is_admitted_takes_long(backend: GrammarBackend, outputs: Any, seed: int) -> None:
    try:
        check_constraints({"structured_outputs": outputs}, StructuredOutputConfig())
    except InvalidRequest:
        reject()  # a large one may be beyond the bounds: it is not admitted
    longest_s = longest_step_s(backend, outputs, random.Random(seed))
    target(longest_s)
    assert longest_s < LONGEST_STEP_S


def longest_step_s(backend: GrammarBackend, outputs: dict[str, str], rng: random.Random) -> float:
    request = StructuredOutputRequest(StructuredOutputsParams(**outputs))
    try:
        kind, text = request.structured_output_key
        grammar = MeteredGrammar(backend.compile_grammar(kind, text, {END_OF_TEXT}), GUARD, Allowance(100.0))
    except ValueError:
        return 0.0  # refused where it is tried
    mask, longest_s = backend.allocate_token_bitmask(1), 0.0
    for _ in range(NUM_TOKENS):
        began_at = time.thread_time()
        grammar.fill_bitmask(mask, 0)
        took_s = time.thread_time() - began_at
        allowed = [token for token in allowed_by(grammar, mask) if token != END_OF_TEXT]
        if not allowed:
            break
        began_at = time.thread_time()
        goes_on = grammar.accept_tokens("r", [rng.choice(allowed)])
        longest_s = max(longest_s, took_s + time.thread_time() - began_at)
        if not goes_on:
            break
    return longest_s

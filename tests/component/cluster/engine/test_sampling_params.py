"""What each of vLLM's sampling parameters allows, by example."""

from typing import Any

import numpy as np
import pytest
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)

from cluster.engine.sampling_params import (
    FACTS,
    Fact,
    checks_of,
    decode_sampling_params,
    encode_sampling_params,
    is_plain,
    is_resumable,
    is_verifiable,
    passes,
)

R, V, P = "resumed", "verified", "plain"
ALL = frozenset({R, V, P})

EXAMPLES: list[tuple[str, Any, frozenset[str]]] = [
    ("temperature", 0.5, ALL),
    ("top_p", 0.5, ALL),
    ("top_k", 3, ALL),
    ("min_p", 0.1, ALL),
    ("logit_bias", {5: 1.0}, ALL),
    ("allowed_token_ids", [5, 6], ALL),
    ("stop_token_ids", [7], ALL),
    ("ignore_eos", True, ALL),
    ("max_tokens", 3, ALL),
    ("max_tokens", None, ALL),
    ("detokenize", False, ALL - {P}),
    ("skip_special_tokens", False, ALL),
    ("spaces_between_special_tokens", False, ALL),
    ("include_stop_str_in_output", True, ALL),
    ("stop", ["x"], ALL - {R}),
    ("stop", [], ALL),
    ("stop", None, ALL),
    ("presence_penalty", 0.1, ALL - {R}),
    ("frequency_penalty", -0.1, ALL - {R}),
    ("repetition_penalty", 1.1, ALL - {R}),
    ("min_tokens", 2, ALL - {R}),
    ("bad_words", ["x"], ALL - {R}),
    ("bad_words", [], ALL),
    ("bad_words", None, ALL),
    ("thinking_token_budget", 1, frozenset({V})),
    ("repetition_detection", RepetitionDetectionParams(4, 1, 3), frozenset({V})),
    ("watermarking", True, frozenset({V})),
    ("watermarking", False, ALL - {P}),
    ("trace_decode_token_ids", [1], frozenset({V})),
    ("extra_args", {"a": 1}, frozenset({V})),
    ("extra_args", {}, ALL),
    ("seed", 1, ALL - {R}),
    ("n", 2, frozenset()),
    ("logprobs", 0, frozenset()),
    ("prompt_logprobs", 1, frozenset()),
    ("logprob_token_ids", [1], frozenset()),
    ("logprob_token_ids", [], ALL - {P}),
    ("structured_outputs", StructuredOutputsParams(choice=["a", "b"]), frozenset({P})),
    ("output_kind", RequestOutputKind.CUMULATIVE, ALL - {P}),
    ("output_kind", RequestOutputKind.FINAL_ONLY, ALL - {P}),
    ("stream_interval", 2, ALL - {P}),
    ("skip_clone", True, ALL),
    ("output_text_buffer_length", 3, ALL),
    ("flat_logprobs", True, ALL - {P}),
    ("prompt_logprob_token_ids", np.array([[1, 2]]), frozenset()),
    ("prompt_logprob_start", 1, ALL - {P}),
    ("skip_reading_prefix_cache", True, ALL),
    ("routed_experts_prompt_start", 1, ALL - {P}),
    ("_eos_token_id", 1, ALL),
    ("_all_stop_token_ids", {1}, ALL),
    ("_watermarking_skipped", True, ALL),
    ("_bad_words_token_ids", [[1]], ALL),
]
"""Values of each field that are not its default, and what a request with that value is still allowed."""


def a_request(**fields: Any) -> SamplingParams:
    """The parameters of a streamed request. vLLM's validation does not see `fields`: many are its own."""
    params = SamplingParams(output_kind=RequestOutputKind.DELTA)
    for name, value in fields.items():
        setattr(params, name, value)
    return params


def answers(params: SamplingParams) -> set[str]:
    questions = ((R, is_resumable), (V, is_verifiable), (P, is_plain))
    return {answer for answer, is_so in questions if is_so(params)}


def test_request_that_sets_nothing_is_allowed_all() -> None:
    assert answers(a_request()) == ALL


@pytest.mark.parametrize(("name", "value", "allowed"), EXAMPLES, ids=[f"{name}={value}" for name, value, _ in EXAMPLES])
def test_field_allows_what_it_should(name: str, value: Any, allowed: frozenset[str]) -> None:
    assert answers(a_request(**{name: value})) == allowed


def test_seed_matters_only_where_tokens_are_drawn() -> None:
    assert is_resumable(a_request(seed=1, temperature=0.0))
    assert not is_resumable(a_request(seed=1, temperature=0.1))


def test_parameters_survive_the_wire() -> None:
    params = SamplingParams(temperature=0.5, stop=["x"], output_kind=RequestOutputKind.DELTA, logit_bias={5: 1.0})
    assert decode_sampling_params(encode_sampling_params(params)) == params


def test_every_parameter_of_vllm_is_in_the_table() -> None:
    assert set(SamplingParams.__struct_fields__) == set(FACTS)


def test_every_parameter_of_vllm_has_an_example() -> None:
    assert {name for name, _, _ in EXAMPLES} == set(FACTS)


@pytest.mark.parametrize("fact", [None, Fact()], ids=["no fact", "a fact that says nothing"])
@pytest.mark.parametrize(("name", "value"), [("top_p", 0.5), ("logit_bias", {5: 1.0}), ("max_tokens", 3), ("seed", 1)])
def test_field_allows_its_default_alone_until_its_fact_says_more(fact: Fact | None, name: str, value: Any) -> None:
    facts = {field: other for field, other in FACTS.items() if field != name} | ({name: fact} if fact else {})
    checks = checks_of(facts)
    assert [passes(a_request(), aspect) for aspect in checks] == [True] * 3
    assert [passes(a_request(**{name: value}), aspect) for aspect in checks] == [False] * 3

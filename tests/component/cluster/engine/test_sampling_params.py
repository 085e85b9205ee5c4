from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from cluster.engine.sampling_params import (
    FACTS,
    checks_of,
    decode_sampling_params,
    encode_sampling_params,
    is_resumable,
    is_verifiable,
)

PLAIN = [
    {},
    {"temperature": 0.0, "seed": 1},
    {"top_p": 0.5, "top_k": 3, "min_p": 0.1},
    {"logit_bias": {5: 1.0}},
    {"allowed_token_ids": [5, 6]},
    {"stop_token_ids": [7], "ignore_eos": True, "max_tokens": 3},
]
BOUND = [
    {"stop": ["x"]},
    {"presence_penalty": 0.1},
    {"frequency_penalty": 0.1},
    {"repetition_penalty": 1.1},
    {"min_tokens": 2},
    {"seed": 1},
    {"bad_words": ["x"]},
    {"n": 2},
    {"extra_args": {"a": 1}},
]
REPORTING = [
    {"logprobs": 0},
    {"prompt_logprobs": 1},
    {"structured_outputs": StructuredOutputsParams(choice=["a", "b"])},
]


@pytest.mark.parametrize("fields", PLAIN, ids=str)
def test_request_whose_tokens_depend_on_the_text_alone_may_go_on_elsewhere(fields: Any) -> None:
    assert is_resumable(SamplingParams(**fields))


@pytest.mark.parametrize("fields", BOUND + REPORTING, ids=str)
def test_request_whose_tokens_depend_on_more_may_not(fields: Any) -> None:
    assert not is_resumable(SamplingParams(**fields))


@pytest.mark.parametrize("fields", [*PLAIN, *BOUND[:-2]], ids=str)
def test_engine_may_be_asked_for_its_most_likely_tokens(fields: Any) -> None:
    assert is_verifiable(SamplingParams(**fields))


@pytest.mark.parametrize("fields", [*REPORTING, {"n": 2}], ids=str)
def test_engine_whose_most_likely_tokens_are_a_client_s_or_a_grammar_s_is_not_asked(fields: dict[str, Any]) -> None:
    assert not is_verifiable(SamplingParams(**fields))


def test_parameters_survive_the_wire() -> None:
    params = SamplingParams(temperature=0.5, stop=["x"], output_kind=RequestOutputKind.DELTA, logit_bias={5: 1.0})
    assert decode_sampling_params(encode_sampling_params(params)) == params


def test_every_parameter_of_vllm_is_in_the_table() -> None:
    assert set(SamplingParams.__struct_fields__) == set(FACTS)


@pytest.mark.parametrize("missing", ["top_p", "logit_bias", "max_tokens"])
def test_field_that_is_missing_from_the_table_allows_its_default_alone(missing: str) -> None:
    resumes, verifies = checks_of({name: fact for name, fact in FACTS.items() if name != missing})
    default = (getattr(SamplingParams(), missing),)
    assert (missing, default) in resumes and (missing, default) in verifies

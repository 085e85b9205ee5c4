"""Names and types of engine arguments, as vLLM has them."""

import dataclasses
from typing import Any, get_args

import pytest
import yaml
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs

from cluster.config.application import parse
from cluster.config.engine_arguments import (
    BATON_SETS,
    HASHED_ALIKE,
    LIKE_THE_OTHER_POOL,
    OF_DRAFT,
    RULED,
    refusal,
)
from cluster.engine_checks.arguments import KNOWN, check_arguments
from cluster.repository import REPO_ROOT

MODEL = "conf/models/baton-demo"
OF_VLLM = {field.name: field for field in dataclasses.fields(AsyncEngineArgs)}
JUDGED_APART = ("limit_mm_per_prompt", "speculative_config", "spec_method", "spec_model", "tensor_parallel_size")
"""Engine arguments that cluster/config/engine_arguments.py judges by more than their values."""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"engine": {"max_model_length": 1}}, "engine: max_model_length: vLLM has no such .* is it max_model_len?"),
        ({"engine": {"max_model_len": "long"}}, "engine: max_model_len: 'long' is not valid: Expected `int"),
        ({"engine": {"max_num_seqs": True}}, "engine: max_num_seqs: True is not valid"),
        ({"decode": {"engine": {"max_num_seqs": [8]}}}, r"decode\.engine: max_num_seqs: \[8\] is not valid"),
        (
            {"prefill": {"engine": {"gpu_memory_utilization": "most"}}},
            r"prefill\.engine: gpu_memory_utilization: 'most'",
        ),
        ({"engine": {"enforce_eager": "no"}}, "engine: enforce_eager: 'no' is not valid: Expected `bool`"),
        ({"engine": {"kv_cache_dtype": "fp9"}}, "engine: kv_cache_dtype: 'fp9' is not valid"),
        ({"engine": {"tensor_parallel_size": "two"}}, "engine: tensor_parallel_size: 'two' is not valid"),
        ({"engine": {"speculative_config": "ngram"}}, "engine: speculative_config: 'ngram' is not valid"),
        ({"engine": {"": 1}}, "engine: : vLLM has no such engine argument"),
        ({"engine": {"compilation_config": {"modes": 1}}}, r"(?s)prefill\.engine, with the shared `engine`: .*modes"),
    ],
    ids=str,
)
def test_nonsense_among_the_engine_arguments_is_refused_with_its_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_arguments(parse({"model": MODEL} | args))


@pytest.mark.parametrize(
    "engine",
    [
        {"max_model_len": None, "cpu_offload_gb": 1, "attention_backend": "FLASH_ATTN"},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}, "seed": 7},
        {"compilation_config": {"mode": 0}, "hf_overrides": {"num_hidden_layers": 1}},
    ],
    ids=str,
)
def test_arguments_that_vllm_has_are_taken(engine: dict[str, Any]) -> None:
    check_arguments(parse({"model": MODEL, "engine": engine}))


@pytest.mark.parametrize("file", ["local.yaml", "local-gpu.yaml"])
def test_configs_of_the_repository_have_arguments_of_vllm(file: str) -> None:
    config = yaml.safe_load((REPO_ROOT / "conf" / file).read_text())
    check_arguments(parse(config["applications"][0]["args"]))


@pytest.mark.parametrize("name", sorted({*BATON_SETS, *RULED, *HASHED_ALIKE, *LIKE_THE_OTHER_POOL, *JUDGED_APART}))
def test_each_engine_argument_that_baton_judges_is_one_of_vllm(name: str) -> None:
    """A rule of an argument that vLLM has renamed would refuse nothing."""
    assert name in OF_VLLM


def test_each_key_of_a_draft_model_is_one_of_vllm() -> None:
    assert {*OF_DRAFT} <= {field.name for field in dataclasses.fields(SpeculativeConfig)}


@pytest.mark.parametrize("name", RULED)
def test_default_of_vllm_is_allowed(name: str) -> None:
    assert refusal({name: OF_VLLM[name].default}) is None


@pytest.mark.parametrize("name", sorted(LIKE_THE_OTHER_POOL))
def test_argument_that_is_not_set_counts_as_the_default_of_vllm(name: str) -> None:
    """Otherwise a pool that sets the default would differ from one that does not. Nobody sets a whole object."""
    default = OF_VLLM[name].default
    if default is not dataclasses.MISSING:
        assert default == LIKE_THE_OTHER_POOL[name]


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_taken_without_asking_vllm_is_taken_by_vllm(name: str) -> None:
    """The empty name has vLLM asked, which finds fault with that alone."""
    values: dict[Any, list[Any]] = {str: ["a.Class"], int: [1, 4096], float: [0.9], bool: [True, False]}
    for value in values.get(KNOWN[name]) or get_args(KNOWN[name]):
        check_arguments(parse({"model": MODEL, "engine": {name: value}}))
        with pytest.raises(ValueError, match="engine: : vLLM has no such"):
            check_arguments(parse({"model": MODEL, "engine": {name: value, "": 1}}))

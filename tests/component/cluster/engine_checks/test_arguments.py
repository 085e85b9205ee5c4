"""Names and types of engine arguments, as vLLM has them."""

from typing import Any

import pytest
import yaml

from cluster.config.application import parse
from cluster.engine_checks.arguments import check_arguments
from cluster.repository import REPO_ROOT

MODEL = "conf/models/baton-demo"


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

import re
from typing import Any

import pytest

from cluster.config.application import AppConfig, parse
from cluster.config.engine_arguments import BATON_SETS, HASHED_ALIKE, LIKE_THE_OTHER_POOL, RULED, difference


def a_config(**args: object) -> AppConfig:
    return parse({"model": "org/model"} | args)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"data_parallel_size": 2}, r"data_parallel_size: 2 cannot work: .* raise `replicas` instead"),
        ({"data_parallel_size_local": 2}, "data_parallel_size_local: 2 cannot work"),
        ({"data_parallel_rank": 0}, "data_parallel_rank: 0 cannot work"),
        ({"data_parallel_external_lb": True}, "data_parallel_external_lb: True cannot work"),
        ({"nnodes": 2}, "nnodes: 2 cannot work: an engine must be on one machine"),
        ({"node_rank": 1}, "node_rank: 1 cannot work"),
        ({"distributed_executor_backend": "external_launcher"}, "distributed_executor_backend: .* cannot work"),
        ({"distributed_executor_backend": ["mp"]}, "distributed_executor_backend: .* cannot work"),
        ({"distributed_executor_backend": "ray"}, "distributed_executor_backend: 'ray' cannot work: .* one machine"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: 2 cannot work: .* pipeline stages: use tensor_par"),
        ({"enable_lora": True}, "enable_lora: True cannot work: no request can name a LoRA adapter: merge"),
        ({"default_mm_loras": {"image": "a"}}, "default_mm_loras: .* cannot work"),
        ({"limit_mm_per_prompt": {"image": 4}}, "limit_mm_per_prompt: the ingress takes text only"),
        ({"limit_mm_per_prompt": {"image": {"count": 1}}}, "limit_mm_per_prompt: the ingress takes text only"),
        ({"limit_mm_per_prompt": 3}, "limit_mm_per_prompt: the ingress takes text only"),
        ({"enable_mm_embeds": True}, "enable_mm_embeds: True cannot work"),
        ({"enable_prompt_embeds": True}, "enable_prompt_embeds: True cannot work"),
        ({"skip_tokenizer_init": True}, "skip_tokenizer_init: True cannot work"),
        ({"runner": "pooling"}, "runner: 'pooling' cannot work: Baton serves models that generate text"),
        ({"convert": "embed"}, "convert: 'embed' cannot work"),
        ({"diffusion_config": {}}, "diffusion_config: {} cannot work"),
        ({"kv_offloading_size": 4.0}, "kv_offloading_size: 4.0 cannot work: .* use `tiers`"),
        ({"worker_extension_cls": "a.B"}, "worker_extension_cls cannot be set here: Baton sets it"),
        ({"disable_log_stats": True}, "disable_log_stats cannot be set here: Baton sets it"),
        ({"block_size": "16"}, "block_size: '16' must be a number of tokens"),
        ({"block_size": 0}, "block_size: 0 must be a number of tokens"),
        ({"block_size": True}, "block_size: True must be a number of tokens"),
        ({"data_parallel_size": "2"}, "data_parallel_size: '2' cannot work"),
        ({"data_parallel_size": True}, "data_parallel_size: True cannot work"),
        ({"nnodes": None}, "nnodes: None cannot work"),
    ],
    ids=str,
)
def test_engine_argument_that_cannot_work_is_refused_wherever_it_stands(engine: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"engine: {why}"):
        a_config(engine=engine)
    with pytest.raises(ValueError, match=r"decode\.engine: "):
        a_config(decode={"engine": engine})


@pytest.mark.parametrize("name", RULED)
def test_value_that_no_rule_allows_is_refused_with_the_reason_of_the_rule(name: str) -> None:
    says = f"engine: {name}: 'another value' cannot work: {RULED[name].why}"
    with pytest.raises(ValueError, match=re.escape(says)):
        a_config(engine={name: "another value"})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, rule in RULED.items() for value in rule.allowed])
def test_each_value_that_a_rule_allows_is_taken(name: str, value: Any) -> None:
    assert a_config(engine={name: value}).engine == {name: value}


@pytest.mark.parametrize("name", sorted(BATON_SETS))
def test_engine_argument_of_batons_own_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"engine: {name} cannot be set here: Baton sets it"):
        a_config(engine={name: "a value"})
    with pytest.raises(ValueError, match=rf"decode\.engine: {name} cannot be set here: Baton sets it"):
        a_config(decode={"engine": {name: "a value"}})


@pytest.mark.parametrize("name", sorted(HASHED_ALIKE))
def test_engine_argument_that_hashes_depend_on_is_refused_in_a_pool(name: str) -> None:
    with pytest.raises(ValueError, match=rf"decode\.engine: {name} must be the same everywhere: set it in `engine`"):
        a_config(decode={"engine": {name: 16}})


@pytest.mark.parametrize("name", LIKE_THE_OTHER_POOL)
def test_engine_argument_that_must_be_alike_is_refused_in_one_pool(name: str) -> None:
    with pytest.raises(ValueError, match=f"engine: {name} is .* in `prefill` and 'one' in `decode`"):
        a_config(decode={"engine": {name: "one"}})


@pytest.mark.parametrize(
    "engine",
    [
        {"data_parallel_size": 1, "nnodes": 1, "pipeline_parallel_size": 1, "enable_lora": False},
        {"distributed_executor_backend": "mp", "tensor_parallel_size": 8, "enable_expert_parallel": True},
        {"distributed_executor_backend": "bench.fronts.executor.PacedExecutor"},
        {"limit_mm_per_prompt": {"image": 0}, "runner": "generate"},
        {"speculative_config": {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3}},
    ],
    ids=str,
)
def test_engine_arguments_that_change_nothing_for_handoffs_are_taken(engine: dict[str, Any]) -> None:
    assert a_config(engine=engine).engine == engine


EAGLE = {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [
        ({}, {"dtype": "float16"}, "dtype is 'auto' in `prefill` and 'float16' in `decode`, .* set it in `engine`"),
        ({"kv_cache_dtype": "fp8"}, {}, "kv_cache_dtype is 'fp8' in `prefill` and 'auto' in `decode`"),
        ({}, {"attention_backend": "TRITON_ATTN"}, "attention_backend is not set in `prefill`"),
        ({}, {"max_model_len": 1024}, "max_model_len is not set in `prefill` and 1024 in `decode`"),
        ({"revision": "a"}, {"revision": "b"}, "revision is 'a' in `prefill` and 'b' in `decode`"),
        ({"hf_overrides": {"a": 1}}, {}, "hf_overrides"),
        ({"quantization": "fp8"}, {}, "quantization is 'fp8' in `prefill` and not set in `decode`"),
        ({"logprobs_mode": "raw_logits"}, {}, "logprobs_mode"),
        ({}, {"speculative_config": EAGLE}, "speculative_config differs"),
        ({"speculative_config": EAGLE}, {"speculative_config": EAGLE | {"model": "org/other"}}, "speculative_config"),
        ({}, {"spec_model": "org/draft"}, "speculative_config differs"),
        ({"tensor_parallel_size": 2}, {"tensor_parallel_size": 3}, "tensor_parallel_size is 2 in `prefill` and 3 in"),
    ],
    ids=str,
)
def test_pools_that_could_not_hand_over_are_refused(prefill: dict[str, Any], decode: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"engine: {why}"):
        a_config(prefill={"engine": prefill}, decode={"engine": decode})


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"dtype": "auto"}, {}),
        ({"dtype": None, "hf_overrides": {}}, {"dtype": "auto"}),
        ({}, {"speculative_config": NGRAM}),
        ({}, {"spec_method": "ngram", "spec_tokens": 3}),
        ({"speculative_config": EAGLE | {"num_speculative_tokens": 1}}, {"speculative_config": EAGLE}),
        ({"tensor_parallel_size": 2}, {"tensor_parallel_size": 4}),
        ({"max_num_batched_tokens": 8192}, {"max_num_batched_tokens": 512, "max_num_seqs": 8}),
        ({"tensor_parallel_size": "many"}, {"tensor_parallel_size": None}),
    ],
    ids=str,
)
def test_pools_may_differ_in_what_no_handoff_depends_on(prefill: dict[str, Any], decode: dict[str, Any]) -> None:
    assert difference(prefill, decode) is None


@pytest.mark.parametrize(
    ("gpus", "engine", "is_right"),
    [
        (1, {}, True),
        (0, {"tensor_parallel_size": 2}, True),
        (0.5, {}, True),
        (2, {"tensor_parallel_size": 2}, True),
        (1, {"tensor_parallel_size": 2}, False),
        (2, {}, False),
        (0.5, {"tensor_parallel_size": 2}, False),
        (1, {"tensor_parallel_size": "two"}, True),
    ],
    ids=str,
)
def test_workers_have_the_gpus_that_their_engines_take(gpus: float, engine: dict[str, Any], is_right: bool) -> None:
    args = {"engine": engine, "prefill": {"gpus": gpus}, "decode": {"gpus": gpus}}
    if is_right:
        assert a_config(**args).prefill.gpus == gpus
    else:
        with pytest.raises(ValueError, match=f"prefill: gpus is {gpus}, and an engine with these arguments takes"):
            a_config(**args)

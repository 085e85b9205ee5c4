"""Configs of models give the shapes that the simulator knows by name, and foreign models are refused."""

import json
from typing import Any

import pytest

from cluster.planning.model_shapes import named_shape, shape_of_config
from cluster.repository import REPO_ROOT
from router.prediction.hardware import LLAMA_3_70B, MIXTRAL_8X7B, QWEN3_30B_A3B, QWEN3_32B

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
}
QWEN: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "vocab_size": 151936,
}
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


@pytest.mark.parametrize(
    ("config", "shape"),
    [(LLAMA, LLAMA_3_70B), (QWEN, QWEN3_32B), (MIXTRAL, MIXTRAL_8X7B), (QWEN_MOE, QWEN3_30B_A3B)],
)
def test_config_has_the_shape_that_is_known_by_name(config: dict[str, Any], shape: object) -> None:
    assert shape_of_config(config) == shape
    assert shape_of_config({"text_config": config, "model_type": "sees_images"}) == shape


def test_weights_in_fp8_have_one_byte() -> None:
    _, shape = named_shape("qwen3-32b-fp8")
    assert shape.bytes_per_weight == 1.0
    assert shape_of_config({**QWEN, "quantization_config": {"quant_method": "fp8"}}) == shape


def test_demo_model_has_the_weights_of_its_file() -> None:
    folder = REPO_ROOT / "conf/models/baton-demo"
    shape = shape_of_config(json.loads((folder / "config.json").read_text()))
    tied = shape.vocab * shape.hidden * shape.bytes_per_weight  # the file has one of both matrices of the vocabulary
    assert shape.num_bytes - tied == pytest.approx((folder / "model.safetensors").stat().st_size, rel=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "deepseek_v3"}, "model_type 'deepseek_v3'.* is one of gemma"),
        ({"model_type": ""}, "model_type ''"),
        ({"mlp_only_layers": [0]}, "dense layers"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized by 'awq'"),
        ({"decoder_sparse_step": 2}, "dense layers"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"intermediate_size": None}, "no intermediate_size"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_attention_heads": 60}, "no head_dim"),
    ],
)
def test_config_of_another_kind_is_refused_with_its_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_of_config({**LLAMA, **change})


@pytest.mark.parametrize("config", [None, [], "x", {}, {"text_config": 3}])
def test_config_that_is_none_is_refused(config: object) -> None:
    with pytest.raises(ValueError, match=r"config\.json"):
        shape_of_config(config)


@pytest.mark.parametrize(
    ("name", "known", "num_bytes"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b", 2.0),
        ("Qwen/Qwen3-14B-FP8", "qwen3-14b-fp8", 1.0),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", 2.0),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", 2.0),
        ("meta-llama/Meta-Llama-3-70B", "llama-3-70b", 2.0),
    ],
)
def test_hub_name_is_known_by_its_longest_part(name: str, known: str, num_bytes: float) -> None:
    found, shape = named_shape(name)
    assert (found, shape.bytes_per_weight) == (known, num_bytes)
    assert named_shape(known) == (found, shape)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-32B-AWQ", "x/Llama-3.1-8B-GGUF", "qwen3-8b-4bit", "nvidia/Qwen3-8B-NVFP4"]
)
def test_name_of_weights_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="16 bits and fp8 only"):
        named_shape(name)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-VL-8B", "xqwen3-8b", "qwen3-8bx"])
def test_part_of_a_word_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="unknown model"):
        named_shape(name)


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"one of llama-3\.1-8b"):
        named_shape("gpt-5")

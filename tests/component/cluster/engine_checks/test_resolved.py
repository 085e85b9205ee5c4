"""What vLLM itself makes of models that Baton cannot serve. Only their configurations are read; no weights exist."""

import json
from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from cluster.engine_checks.resolved import refusal

SMALL: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA = SMALL | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2}
MAMBA = SMALL | {
    "model_type": "mamba2",
    "architectures": ["Mamba2ForCausalLM"],
    "num_heads": 8,
    "head_dim": 64,
    "expand": 2,
    "state_size": 64,
    "n_groups": 1,
}
BERT = SMALL | {"model_type": "bert", "architectures": ["BertModel"]}
REWARD = LLAMA | {"architectures": ["LlamaForSequenceClassification"], "num_labels": 2}


def resolved(model: dict[str, Any], folder: Path, **engine: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(model))
    arguments = {"max_model_len": 256, "dtype": "bfloat16", "enforce_eager": True, "block_size": 32}
    return AsyncEngineArgs(
        **arguments | {"model": str(folder), "tokenizer": str(folder)} | engine
    ).create_engine_config()


def test_model_that_generates_is_taken(tmp_path: Path) -> None:
    assert refusal(resolved(LLAMA, tmp_path), 32) is None


@pytest.mark.parametrize(
    ("model", "why"),
    [(MAMBA, "has no attention layers"), (BERT, "is a pooling model"), (REWARD, "is a pooling model")],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else "",
)
def test_model_without_kv_blocks_or_without_text_is_refused(model: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in str(refusal(resolved(model, tmp_path), 32))


def test_blocks_of_another_size_than_the_ingress_hashes_are_refused_with_the_size(tmp_path: Path) -> None:
    said = refusal(resolved(LLAMA, tmp_path, block_size=64), 16)
    assert said is not None and "set engine.block_size to 64" in said

"""Small models of each kind with random weights, as folders that vLLM loads. Nothing is downloaded."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig

from cluster.repository import REPO_ROOT

TOKENIZER = REPO_ROOT / "conf/models/baton-demo"
SCALE = 2.5
"""What matrices are multiplied by. With a smaller factor, answers hardly depend on the prompt; with a larger one, a
rounding difference changes the whole answer.
"""
SMALL: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def dense() -> PretrainedConfig:
    return transformers.LlamaConfig(**SMALL)


def experts() -> PretrainedConfig:
    return transformers.Qwen3MoeConfig(
        **SMALL, head_dim=64, moe_intermediate_size=128, num_experts=8, num_experts_per_tok=2
    )


def sliding_window() -> PretrainedConfig:
    """All layers."""
    return transformers.MistralConfig(**SMALL, head_dim=64, sliding_window=256)


def some_sliding_windows() -> PretrainedConfig:
    layers = ["sliding_attention"] * 3 + ["full_attention"]
    return transformers.Gemma3TextConfig(
        **SMALL, head_dim=64, sliding_window=256, layer_types=layers, query_pre_attn_scalar=64
    )


def latent_attention() -> PretrainedConfig:
    return transformers.DeepseekV2Config(
        **SMALL | {"num_key_value_heads": 4, "num_hidden_layers": 3},
        moe_intermediate_size=128,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        topk_method="group_limited_greedy",
        n_group=1,
        topk_group=1,
    )


def hybrid() -> PretrainedConfig:
    """Mamba layers and one layer with attention."""
    return transformers.GraniteMoeHybridConfig(
        **SMALL,
        layer_types=["mamba", "mamba", "attention", "mamba"],
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_d_state=64,
        mamba_n_groups=1,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=512,
        attention_multiplier=0.1,
        position_embedding_type="rope",
    )


KINDS: dict[str, Callable[[], PretrainedConfig]] = {
    function.__name__: function
    for function in (dense, experts, sliding_window, some_sliding_windows, latent_attention, hybrid)
}


def make(kind: str, folder: Path) -> None:
    """Write a model of this kind, with the tokenizer of the demo model."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(KINDS[kind]())
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() >= 2 and "embed" not in name and "conv" not in name:
                weights.mul_(SCALE)
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)

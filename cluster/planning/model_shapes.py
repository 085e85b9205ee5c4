"""The shape of a model, from its name or from its config.json: what `baton plan` computes with. Pure.

A shape is a decoder with grouped-query attention, dense or a mixture of like experts. What the roofline model
(router/prediction/roofline.py) has no term for is refused: a plan for a model of another kind would look right and be
wrong. Layers with a sliding window count as layers with full attention, so their memory is an upper bound.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from router.prediction.hardware import MODELS, longest_part
from router.prediction.roofline import ModelShape

FP8 = "-fp8"
"""Suffix of a name of a model whose weights have 8 bits, as vendors name such models."""
NOT_GATED = frozenset({"gpt_neox", "phi", "starcoder2"})
"""Values of `model_type` whose feed-forward networks have two matrices instead of three."""
KNOWN_TYPES = NOT_GATED | {
    "gemma",
    "gemma2",
    "gemma3_text",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
}
"""Values of `model_type` of models that the roofline model describes as a whole. Others may have parts that it has no
term for: latent attention, experts that all tokens share, layers of a state-space model, an encoder.
"""
NOT_OF_16_OR_FP8 = frozenset(
    {
        *("awq", "gptq", "bnb", "gguf", "mlx", "quantized", "int4", "int8", "4bit", "8bit"),
        *("fp4", "nvfp4", "mxfp4", "w4a16", "w8a8"),
    }
)
"""Words in the name of a model whose weights are neither of 16 bits nor in fp8."""
FULL_ATTENTION = frozenset({"full_attention", "sliding_attention", "attention"})
"""Values of `layer_types` that keep keys and values of tokens."""
Size = Annotated[int, Meta(ge=1, le=10_000_000)]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a config.json that the times and the memory of a model depend on."""

    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    vocab_size: Size
    intermediate_size: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    model_type: str = ""
    num_experts: Size | None = None
    num_local_experts: Size | None = None
    n_routed_experts: Size | None = None
    num_experts_per_tok: Size | None = None
    moe_intermediate_size: Size | None = None
    decoder_sparse_step: int = 1
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None


def named_shape(name: str) -> tuple[str, ModelShape]:
    """The name and the shape of a model of router/prediction/hardware.py. Hub names are found by their longest part, as
    engines are. A name with `fp8` in it has weights of 8 bits.

    Raises:
        ValueError: there is no such model, or its weights have another form.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    plain = longest_part(MODELS, name.lower())
    if plain is None:
        raise ValueError(
            f"unknown model {name!r}: give a folder with a config.json, or one of {', '.join(MODELS)}, each also with "
            f"{FP8} at its end"
        )
    if others := words & NOT_OF_16_OR_FP8:
        raise ValueError(f"model {name!r}: {min(others)}: `baton plan` knows weights of 16 bits and fp8 only")
    if "fp8" not in words:
        return plain, MODELS[plain]
    return plain + FP8, msgspec.structs.replace(MODELS[plain], bytes_per_weight=1.0)


def shape_of_config(config: object) -> ModelShape:
    """The shape of a model, from the contents of its config.json.

    Raises:
        ValueError: the contents are no config of a model, or the roofline model has no term for a part of the model.
    """
    if not isinstance(config, Mapping):
        raise ValueError("config.json is not an object")
    text = config.get("text_config", config)  # models that see images keep their language model there
    try:
        parsed = msgspec.convert(text, ModelConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"config.json: {error}") from error
    _refuse_foreign({**config, **text}, parsed)
    experts = parsed.num_experts or parsed.num_local_experts or parsed.n_routed_experts or 1
    active = parsed.num_experts_per_tok if experts > 1 else 1
    ffn = parsed.moe_intermediate_size if experts > 1 and parsed.moe_intermediate_size else parsed.intermediate_size
    if ffn is None or active is None or active > experts:
        raise ValueError("config.json has no intermediate_size, or no valid num_experts_per_tok beside its experts")
    if parsed.head_dim is None and parsed.hidden_size % parsed.num_attention_heads:
        raise ValueError("config.json has no head_dim, and its hidden_size is no multiple of num_attention_heads")
    return ModelShape(
        layers=parsed.num_hidden_layers,
        hidden=parsed.hidden_size,
        heads=parsed.num_attention_heads,
        kv_heads=parsed.num_key_value_heads or parsed.num_attention_heads,
        head_dim=parsed.head_dim or parsed.hidden_size // parsed.num_attention_heads,
        ffn=ffn,
        vocab=parsed.vocab_size,
        num_ffn_matrices=2 if parsed.model_type in NOT_GATED else 3,
        num_experts=experts,
        num_active_experts=active,
        bytes_per_weight=1.0 if parsed.quantization_config else 2.0,
    )


def _refuse_foreign(config: Mapping[str, Any], parsed: ModelConfig) -> None:
    foreign = set()
    if parsed.model_type not in KNOWN_TYPES:
        foreign.add(f"model_type {parsed.model_type!r}")
    if parsed.decoder_sparse_step != 1 or config.get("mlp_only_layers"):
        foreign.add("a mixture with dense layers")
    if others := {*(parsed.layer_types or ())} - FULL_ATTENTION:
        foreign.add(f"layers of type {min(others)!r}")
    if "float32" in (config.get("torch_dtype"), config.get("dtype")):
        foreign.add("weights of 32 bits")
    if (parsed.quantization_config or {}).get("load_in_4bit"):
        foreign.add("weights of 4 bits")
    method = (parsed.quantization_config or {}).get("quant_method", "fp8")
    if method != "fp8":
        foreign.add(f"weights quantized by {method!r}")
    if foreign:
        raise ValueError(
            f"the roofline model has no term for {', '.join(sorted(foreign))}. `baton plan` knows decoders with "
            "grouped-query attention, dense or a mixture of like experts, with weights of 16 bits or fp8: model_type "
            f"is one of {', '.join(sorted(KNOWN_TYPES))}"
        )

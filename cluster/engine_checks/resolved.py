"""What vLLM's resolved configuration of an engine shows to be impossible, read from its fields: before the weights are
loaded, and again when the engine has started, because vLLM chooses some values then. What the configuration of Baton
shows by itself is in cluster/config/engine_arguments.py. Pure.
"""

from typing import Any


def refusal(config: Any, block_size: int) -> str | None:
    """Why an engine with this VllmConfig cannot serve, and what to do. None if it can. `block_size`: tokens per KV
    block, as the ingress hashes prompts.
    """
    model, parallel = config.model_config, config.parallel_config
    if model.runner_type != "generate":
        return f"{model.model} is a {model.runner_type} model: Baton serves models that generate text"
    if model.is_encoder_decoder:
        return f"{model.model} has an encoder for its prompts, whose output a handoff does not carry"
    if model.is_attention_free:
        return f"{model.model} has no attention layers, so it has no KV blocks to hand over: serve it with vLLM alone"
    if config.lora_config is not None:
        return "LoRA is on, and no request can name an adapter: merge the adapter into the model"
    for name in ("data_parallel_size", "pipeline_parallel_size", "nnodes"):
        if (size := getattr(parallel, name)) != 1:
            return f"{name} is {size}, and an engine has one rank of data, one stage and one machine"
    if (chosen := config.cache_config.block_size) != block_size:
        return (
            f"vLLM has chosen KV blocks of {chosen} tokens for {model.model}, and the ingress hashes blocks of "
            f"{block_size}, so it would find no prompt in any cache: set engine.block_size to {chosen}"
        )
    return None

"""What does not change about an engine while it lives, read from the fields of vLLM's configuration. Pure."""

from typing import Any

from cluster.engine_core.step_policy import mixed_chunk
from cluster.messages.ids import Pool
from cluster.messages.reports import EngineShape


def shape_of(config: Any, pool: Pool, mixed_chunk_tokens: int, *names: str) -> EngineShape:
    """`config`: the VllmConfig of an engine that has started. `names`: what else tells kinds of engines apart. Engines
    of one kind must have the same names on all nodes.
    """
    cache, parallel, scheduling = config.cache_config, config.parallel_config, config.scheduler_config
    degrees = f"tp{parallel.tensor_parallel_size}", f"pp{parallel.pipeline_parallel_size}"
    return EngineShape(
        kind="|".join((*names, *degrees, pool)),
        kv_capacity_tokens=(cache.num_gpu_blocks or 0) * cache.block_size,
        block_size=cache.block_size,
        max_step_tokens=scheduling.max_num_batched_tokens,
        mixed_chunk_tokens=mixed_chunk(config, mixed_chunk_tokens),
        by_deadline=True,
        kv_bytes_per_token=_kv_bytes_per_token(config.model_config, cache),
        leaves_tokens=_leaves_tokens(config),
    )


def _leaves_tokens(config: Any) -> bool:
    """As vLLM's NIXL connector decides it (`_prefill_backoff`), as far as the configuration shows it."""
    model = config.model_config
    return bool(model.is_hybrid or model.is_attention_free or config.num_prefill_lookahead_tokens > 1)


def _kv_bytes_per_token(model: Any, cache: Any) -> int:
    """KV bytes per token of all ranks together, without copies: keys and values of every layer, or MLA's one latent for
    both. An upper bound if a value has fewer than 8 bits.
    """
    num_vectors = 1 if model.use_mla else 2 * model.get_total_num_kv_heads()
    num_values = model.get_total_num_hidden_layers() * num_vectors * model.get_head_size()
    if cache.cache_dtype == "auto":
        return int(num_values * model.dtype.itemsize)
    return int(num_values * (2 if "float16" in cache.cache_dtype else 1))

"""What does not change about an engine while it lives, read from the fields of vLLM's configuration. Pure."""

from collections.abc import Mapping
from typing import Any

from cluster.messages.ids import Pool
from cluster.messages.kv_format import KvFormat
from cluster.messages.reports import EngineShape


def kind_of(pool: Pool, engine: Mapping[str, Any], *names: str) -> str:
    """`EngineShape.kind` of an engine with these vLLM engine arguments. `names`: what else tells kinds of engines
    apart. Engines of one kind must have the same names on all nodes.
    """
    tensor, pipeline = engine.get("tensor_parallel_size", 1), engine.get("pipeline_parallel_size", 1)
    return "|".join((*names, f"tp{tensor}", f"pp{pipeline}", pool))


def shape_of(config: Any, kind: str) -> EngineShape:
    """`config`: the VllmConfig of an engine that has started."""
    cache, scheduling = config.cache_config, config.scheduler_config
    return EngineShape(
        kind=kind,
        kv_capacity_tokens=(cache.num_gpu_blocks or 0) * cache.block_size,
        block_size=cache.block_size,
        max_step_tokens=scheduling.max_num_batched_tokens,
        max_running=scheduling.max_num_seqs,
        has_short_steps=bool(scheduling.enable_chunked_prefill),
        by_deadline=True,
        overtakes=bool(scheduling.enable_chunked_prefill),
        kv_bytes_per_token=_kv_bytes_per_token(config.model_config, cache),
        leaves_tokens=_leaves_tokens(config),
        rounds_coarsely=_has_small_kv(cache) or bool(config.model_config.is_moe),
    )


def kv_format_of(config: Any, digest: str, layout: str, backend: str) -> KvFormat:
    """`config`: the VllmConfig of an engine that has started. `digest`, `layout` and `backend`: what vLLM's connector
    compares with a peer, the layout of the KV blocks, and the attention backend.
    """
    model, cache = config.model_config, config.cache_config
    draft = config.speculative_config
    return KvFormat(
        digest=digest,
        settings=(
            ("model", str(model.model)),
            ("dtype", str(model.dtype).removeprefix("torch.")),
            ("kv_cache_dtype", str(cache.cache_dtype)),
            ("block_size", str(cache.block_size)),
            ("the attention backend", backend),
            ("the layout of KV blocks", layout),
            ("the draft model", str(draft.model) if draft is not None and draft.use_eagle() else "none"),
        ),
        num_ranks=config.parallel_config.tensor_parallel_size,
        num_kv_heads=model.get_total_num_kv_heads(),
        is_replicated=bool(model.use_mla),
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
    return int(num_values * (1 if _has_small_kv(cache) else 2))


def _has_small_kv(cache: Any) -> bool:
    """Whether a value of the KV cache has 8 bits or fewer, by its name."""
    return cache.cache_dtype != "auto" and "float16" not in cache.cache_dtype

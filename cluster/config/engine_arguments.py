"""vLLM engine arguments with which Baton cannot work, as far as the configuration alone shows it. What only vLLM's
resolved configuration shows is in cluster/engine_checks/resolved.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

EngineArguments = Mapping[str, Any]


class Ruled(msgspec.Struct, frozen=True):
    """The only values that an engine argument may have."""

    allowed: tuple[Any, ...]
    why: str
    """Why other values cannot work, and what to do instead."""


BATON_SETS = frozenset(
    {
        "disable_log_stats",
        "kv_events_config",
        "kv_transfer_config",
        "model",
        "prefix_caching_hash_algo",
        "scheduler_cls",
        "scheduling_policy",
        "served_model_name",
        "worker_extension_cls",
    }
)
"""Engine arguments that Baton sets itself."""
HASHED_ALIKE = frozenset({"block_size", "prefix_match_unit"})
"""Engine arguments on which the hashes of KV blocks depend. The ingress and all engines must have the same values, so a
pool cannot set them.
"""
_ONE_MACHINE = "an engine must be on one machine, whose clock its handoffs need"
_NO_RANKS = "an engine has one data-parallel rank, because leases are kept per engine: raise `replicas` instead"
_NO_STAGES = (
    "vLLM's NIXL connector cannot pull KV blocks from or into pipeline stages: use tensor_parallel_size, or no pipeline"
)
_NO_ADAPTERS = "no request can name a LoRA adapter: merge the adapter into the model and serve that"
_TEXT_ONLY = "the ingress takes text only, so engines get no images, videos or audio: leave it out"
RULED: dict[str, Ruled] = {
    "nnodes": Ruled((1,), _ONE_MACHINE),
    "node_rank": Ruled((0,), _ONE_MACHINE),
    "data_parallel_size": Ruled((None, 1), _NO_RANKS),
    "data_parallel_size_local": Ruled((None, 1), _NO_RANKS),
    "data_parallel_rank": Ruled((None,), _NO_RANKS),
    "data_parallel_start_rank": Ruled((None,), _NO_RANKS),
    "data_parallel_external_lb": Ruled((False,), _NO_RANKS),
    "data_parallel_hybrid_lb": Ruled((False,), _NO_RANKS),
    "data_parallel_multi_port_external_lb": Ruled((False,), _NO_RANKS),
    "enable_elastic_ep": Ruled((False,), _NO_RANKS),
    "pipeline_parallel_size": Ruled((1,), _NO_STAGES),
    "enable_lora": Ruled((False,), _NO_ADAPTERS),
    "default_mm_loras": Ruled((None,), _NO_ADAPTERS),
    "enable_mm_embeds": Ruled((False,), _TEXT_ONLY),
    "mm_encoder_only": Ruled((False,), _TEXT_ONLY),
    "enable_prompt_embeds": Ruled((False,), "prompts reach engines as token ids only: leave it out"),
    "skip_tokenizer_init": Ruled((False,), "engines need the tokenizer for stop strings: leave it out"),
    "runner": Ruled(("auto", "generate"), "Baton serves models that generate text, not pooling models"),
    "convert": Ruled(("auto", "none"), "Baton serves models that generate text, not pooling models"),
    "diffusion_config": Ruled((None,), "a diffusion model generates blocks of tokens, which Baton cannot resume"),
    "kv_offloading_size": Ruled((None,), "it would replace Baton's connector: use `tiers`"),
    "ec_transfer_config": Ruled((None,), _TEXT_ONLY),
}
"""Engine arguments that have one right value, or few."""

LIKE_THE_OTHER_POOL: dict[str, Any] = {
    "attention_backend": None,
    "attention_config": None,
    "code_revision": None,
    "disable_hybrid_kv_cache_manager": None,
    "disable_sliding_window": False,
    "dtype": "auto",
    "hf_config_path": None,
    "hf_overrides": None,
    "kv_cache_dtype": "auto",
    "kv_cache_dtype_skip_layers": None,
    "logprobs_mode": "raw_logprobs",
    "mamba_block_size": None,
    "mamba_cache_dtype": "auto",
    "mamba_ssm_cache_dtype": "auto",
    "max_model_len": None,
    "quantization": None,
    "quantization_config": None,
    "revision": None,
}
"""Engine arguments on which the content or the layout of KV blocks, or the check of handoffs depends, and that must be
the same in both pools. With each its value where it is not set.
"""
_WITHOUT_STATE = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods of speculative decoding that keep nothing in KV blocks, so one pool may have them alone."""
OF_DRAFT = ("method", "model", "revision", "code_revision", "parallel_drafting", "kv_cache_dtype")
"""Keys of `speculative_config` on which the KV blocks of a draft model depend."""


def refusal(engine: EngineArguments) -> str | None:
    """Why engine arguments, of both pools or of one, cannot work, with the name of the argument. None if they may."""
    if owned := sorted(engine.keys() & BATON_SETS):
        return f"{', '.join(owned)} cannot be set here: Baton sets it"
    for name, ruled in RULED.items():
        if name in engine and not _is_one_of(engine[name], ruled.allowed):
            return f"{name}: {engine[name]!r} cannot work: {ruled.why}"
    if not _is_on_one_machine(executor := engine.get("distributed_executor_backend")):
        return f'distributed_executor_backend: {executor!r} cannot work: {_ONE_MACHINE}: use "mp" or "uni"'
    if any(_limits(engine)):
        return f"limit_mm_per_prompt: {_TEXT_ONLY}"
    if (unit := engine.get("prefix_match_unit")) is not None:
        return f"prefix_match_unit: {unit!r} cannot work: the ingress knows KV blocks of block_size tokens only"
    if (size := engine.get("block_size")) is not None and not (_is_number(size) and size > 0):
        return f"block_size: {size!r} must be a number of tokens"
    return None


def refusal_of_pool(engine: EngineArguments) -> str | None:
    """Why engine arguments cannot stand in the section of one pool. None if they may."""
    if shared := sorted(engine.keys() & HASHED_ALIKE):
        return f"{', '.join(shared)} must be the same everywhere: set it in `engine`"
    return refusal(engine)


def difference(prefill: EngineArguments, decode: EngineArguments) -> str | None:
    """Why two pools with these engine arguments, the shared ones included, cannot hand KV blocks over. None if the
    arguments do not show it.
    """
    for name, default in LIKE_THE_OTHER_POOL.items():
        ours, theirs = (_set_value(engine, name, default) for engine in (prefill, decode))
        if ours != theirs:
            return (
                f"{name} is {_shown(ours)} in `prefill` and {_shown(theirs)} in `decode`, so the decode pool could not "
                "use the KV blocks of the prefill pool: set it in `engine`, for both"
            )
    drafts = [_draft(engine) for engine in (prefill, decode)]
    if drafts[0] != drafts[1]:
        return (
            "speculative_config differs between `prefill` and `decode`, and a draft model's KV blocks are handed over "
            f"with the model's own: set it in `engine`, for both (only {', '.join(sorted(_WITHOUT_STATE))} may differ)"
        )
    return _split(prefill, decode)


def num_devices(engine: EngineArguments) -> int | None:
    """Accelerators that an engine with these arguments takes. None if the arguments are not numbers."""
    sizes = [engine.get(name, 1) for name in ("tensor_parallel_size", "prefill_context_parallel_size")]
    return int(sizes[0]) * int(sizes[1]) if all(map(_is_number, sizes)) else None


def _is_one_of(value: Any, allowed: Sequence[Any]) -> bool:
    """Unlike `in`, tells 1 from True."""
    return any(type(value) is type(one) and value == one for one in allowed)


def _is_on_one_machine(executor: Any) -> bool:
    """Of an executor that is given by the path of its class, Baton knows nothing: its author does."""
    return executor in (None, "mp", "uni") or (isinstance(executor, str) and "." in executor)


def _limits(engine: EngineArguments) -> list[Any]:
    limits = engine.get("limit_mm_per_prompt") or {}
    return list(limits.values()) if isinstance(limits, Mapping) else [limits]


def _set_value(engine: EngineArguments, name: str, default: Any) -> Any:
    value = engine.get(name)
    return default if value is None or value in ({}, []) else value


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _draft(engine: EngineArguments) -> Any:
    """What the KV blocks of a draft model depend on. None if there are none."""
    draft: Any = engine.get("speculative_config")
    if draft is None and (method := engine.get("spec_method") or engine.get("spec_model")):
        draft = {"method": method, "model": engine.get("spec_model")}
    if not isinstance(draft, Mapping):
        return draft
    return None if draft.get("method") in _WITHOUT_STATE else [draft.get(key) for key in OF_DRAFT]


def _split(prefill: EngineArguments, decode: EngineArguments) -> str | None:
    ranks = [engine.get("tensor_parallel_size", 1) for engine in (prefill, decode)]
    if not all(_is_number(size) and size > 0 for size in ranks) or max(ranks) % min(ranks) == 0:
        return None
    return (
        f"tensor_parallel_size is {ranks[0]} in `prefill` and {ranks[1]} in `decode`, and the smaller must divide the "
        "larger, because each rank pulls from whole ranks of the other pool"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

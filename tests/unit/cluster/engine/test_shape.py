from types import SimpleNamespace
from typing import Any

import pytest

from cluster.engine.shape import shape_of
from cluster.messages.ids import Pool


def a_config(
    *,
    use_mla: bool = False,
    cache_dtype: str = "auto",
    num_gpu_blocks: int | None = 100,
    is_hybrid: bool = False,
    lookahead: int = 0,
    num_drafts: int = 0,
    is_chunked: bool = True,
) -> SimpleNamespace:
    """Llama-3.1-8B."""
    return SimpleNamespace(
        num_prefill_lookahead_tokens=lookahead,
        num_speculative_tokens=num_drafts,
        model_config=SimpleNamespace(
            dtype=SimpleNamespace(itemsize=2),
            use_mla=use_mla,
            is_hybrid=is_hybrid,
            is_attention_free=False,
            get_total_num_hidden_layers=lambda: 32,
            get_total_num_kv_heads=lambda: 8,
            get_head_size=lambda: 128,
        ),
        cache_config=SimpleNamespace(
            cache_dtype=cache_dtype, num_gpu_blocks=num_gpu_blocks, block_size=16, mamba_cache_mode="align"
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=8192, max_num_scheduled_tokens=None, enable_chunked_prefill=is_chunked
        ),
    )


def test_shape_is_what_the_engine_was_started_with() -> None:
    shape = shape_of(a_config(), Pool.DECODE, 256, "org/model", "H100", "vllm-0.32.0")
    assert shape.kind == "org/model|H100|vllm-0.32.0|tp2|pp1|decode"
    assert (shape.kv_capacity_tokens, shape.block_size) == (1600, 16)
    assert (shape.max_step_tokens, shape.mixed_chunk_tokens, shape.by_deadline) == (8192, 256, True)


@pytest.mark.parametrize(("cache_dtype", "num_bytes"), [("auto", 131_072), ("bfloat16", 131_072), ("fp8_e4m3", 65_536)])
def test_kv_bytes_per_token_are_those_of_all_ranks(cache_dtype: str, num_bytes: int) -> None:
    assert shape_of(a_config(cache_dtype=cache_dtype), Pool.DECODE, 256).kv_bytes_per_token == num_bytes


def test_mla_keeps_one_latent_per_layer() -> None:
    assert shape_of(a_config(use_mla=True), Pool.DECODE, 256).kv_bytes_per_token == 32 * 128 * 2


def test_capacity_that_the_engine_does_not_say_is_not_known() -> None:
    assert shape_of(a_config(num_gpu_blocks=None), Pool.DECODE, 256).kv_capacity_tokens == 0


@pytest.mark.parametrize(
    ("is_hybrid", "lookahead", "leaves_tokens"),
    [(False, 0, False), (False, 1, False), (True, 0, True), (False, 2, True)],
)
def test_engine_whose_prefill_stops_early_says_so(is_hybrid: bool, lookahead: int, leaves_tokens: bool) -> None:
    assert (
        shape_of(a_config(is_hybrid=is_hybrid, lookahead=lookahead), Pool.PREFILL, 256).leaves_tokens is leaves_tokens
    )


@pytest.mark.parametrize(
    ("engine", "configured", "mixed_chunk_tokens"),
    [
        ({}, 9000, 8192),
        ({"is_chunked": False}, 256, 8192),
        ({"is_hybrid": True}, 4, 16),
        ({"num_drafts": 5}, 4, 6),
        ({"lookahead": 4}, 4, 5),
    ],
)
def test_prompts_go_on_beside_any_number_of_decodes(
    engine: dict[str, Any], configured: int, mixed_chunk_tokens: int
) -> None:
    assert shape_of(a_config(**engine), Pool.DECODE, configured).mixed_chunk_tokens == mixed_chunk_tokens

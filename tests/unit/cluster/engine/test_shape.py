from types import SimpleNamespace
from typing import Any

import pytest

from cluster.engine.shape import kind_of, kv_format_of, shape_of
from cluster.messages.ids import Pool


class BFloat16:
    itemsize = 2

    def __str__(self) -> str:
        return "torch.bfloat16"


BFLOAT16 = BFloat16()


def a_config(
    *,
    cache_dtype: str = "auto",
    num_gpu_blocks: int | None = 100,
    lookahead: int = 0,
    is_chunked: bool = True,
    num_ranks: int = 1,
    draft: Any = None,
    **of_model: bool,
) -> SimpleNamespace:
    """Llama-3.1-8B, but for what `of_model` says of its model."""
    return SimpleNamespace(
        num_prefill_lookahead_tokens=lookahead,
        model_config=SimpleNamespace(
            model="org/model",
            dtype=BFLOAT16,
            **({"use_mla": False, "is_hybrid": False, "is_attention_free": False, "is_moe": False} | of_model),
            get_total_num_hidden_layers=lambda: 32,
            get_total_num_kv_heads=lambda: 8,
            get_head_size=lambda: 128,
        ),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype, num_gpu_blocks=num_gpu_blocks, block_size=16),
        parallel_config=SimpleNamespace(tensor_parallel_size=num_ranks),
        speculative_config=draft,
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=8192, max_num_seqs=64, enable_chunked_prefill=is_chunked
        ),
    )


def test_shape_is_what_the_engine_was_started_with() -> None:
    shape = shape_of(a_config(), "a-kind")
    assert shape.kind == "a-kind"
    assert (shape.kv_capacity_tokens, shape.block_size) == (1600, 16)
    assert (shape.max_step_tokens, shape.has_short_steps, shape.by_deadline, shape.overtakes) == (
        8192,
        True,
        True,
        True,
    )


@pytest.mark.parametrize(("cache_dtype", "num_bytes"), [("auto", 131_072), ("bfloat16", 131_072), ("fp8_e4m3", 65_536)])
def test_kv_bytes_per_token_are_those_of_all_ranks(cache_dtype: str, num_bytes: int) -> None:
    assert shape_of(a_config(cache_dtype=cache_dtype), "a-kind").kv_bytes_per_token == num_bytes


def test_mla_keeps_one_latent_per_layer() -> None:
    assert shape_of(a_config(use_mla=True), "a-kind").kv_bytes_per_token == 32 * 128 * 2


@pytest.mark.parametrize(
    ("is_moe", "cache_dtype", "is_coarse"), [(False, "auto", False), (True, "auto", True), (False, "fp8_e4m3", True)]
)
def test_engine_whose_answers_jump_with_small_differences_says_so(
    is_moe: bool, cache_dtype: str, is_coarse: bool
) -> None:
    assert shape_of(a_config(is_moe=is_moe, cache_dtype=cache_dtype), "a-kind").rounds_coarsely is is_coarse


def test_capacity_that_the_engine_does_not_say_is_not_known() -> None:
    assert shape_of(a_config(num_gpu_blocks=None), "a-kind").kv_capacity_tokens == 0


@pytest.mark.parametrize(
    ("is_hybrid", "lookahead", "leaves_tokens"),
    [(False, 0, False), (False, 1, False), (True, 0, True), (False, 2, True)],
)
def test_engine_whose_prefill_stops_early_says_so(is_hybrid: bool, lookahead: int, leaves_tokens: bool) -> None:
    assert shape_of(a_config(is_hybrid=is_hybrid, lookahead=lookahead), "a-kind").leaves_tokens is leaves_tokens


def test_engine_that_computes_each_prompt_in_one_step_has_no_short_steps() -> None:
    shape = shape_of(a_config(is_chunked=False), "a-kind")
    assert not shape.has_short_steps and not shape.overtakes


def test_kind_tells_apart_what_makes_engines_faster_or_slower() -> None:
    names = ("org/model", "H100", "vllm-0.32.0")
    assert kind_of(Pool.DECODE, {}, *names) == "org/model|H100|vllm-0.32.0|tp1|pp1|decode"
    arguments = {"tensor_parallel_size": 2, "pipeline_parallel_size": 4}
    assert kind_of(Pool.PREFILL, arguments, *names) == "org/model|H100|vllm-0.32.0|tp2|pp4|prefill"


def test_format_names_what_an_operator_can_set() -> None:
    settings = dict(kv_format_of(a_config(), "a digest", "LBHNC", "FLASH_ATTN").settings)
    assert (settings["dtype"], settings["kv_cache_dtype"], settings["block_size"]) == ("bfloat16", "auto", "16")
    assert (settings["the attention backend"], settings["the draft model"]) == ("FLASH_ATTN", "none")


@pytest.mark.parametrize(("has_state", "shown"), [(True, "org/draft"), (False, "none")])
def test_draft_model_is_of_the_format_if_it_has_kv_blocks(has_state: bool, shown: str) -> None:
    draft = SimpleNamespace(model="org/draft", use_eagle=lambda: has_state)
    assert dict(kv_format_of(a_config(draft=draft), "", "", "").settings)["the draft model"] == shown


def test_format_tells_how_ranks_share_the_heads() -> None:
    of = kv_format_of(a_config(use_mla=True, num_ranks=4), "", "", "")
    assert (of.num_ranks, of.num_kv_heads, of.is_replicated) == (4, 8, True)
